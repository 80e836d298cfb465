"""Span corruption: equal to t5's, reversible at any length, nothing padded, nothing dropped."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from t5jax.data import spans
from t5jax.settings import SettingError

FIRST_SENTINEL = 499
LENGTHS = {"inputs": 64, "targets": 20}


@pytest.fixture(scope="session")
def preprocessors():
  from t5jax.data import preprocessors

  return preprocessors


@pytest.fixture(scope="session")
def oracle():
  return pytest.importorskip("t5.data.preprocessors")


@pytest.fixture(scope="session")
def output_features(vocabulary):
  import seqio

  feature = seqio.Feature(vocabulary.seqio())
  return {"inputs": feature, "targets": feature}


@pytest.fixture(scope="session")
def corrupt(preprocessors):
  """Compiled once: (tokens, density, span length, seed) -> (inputs, targets), without EOS."""
  import tensorflow as tf

  @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.float32),
                                tf.TensorSpec([], tf.float32), tf.TensorSpec([2, 2], tf.int32)])
  def function(tokens, density, span, seeds):
    mask = preprocessors.random_spans_noise_mask(tf.size(tokens), density, tf.unstack(seeds), span)
    return (preprocessors.spans_to_sentinels(tokens, mask, FIRST_SENTINEL),
            preprocessors.spans_to_sentinels(tokens, ~mask, FIRST_SENTINEL))

  return function


def splice(inputs, targets, num_spans, first_sentinel=FIRST_SENTINEL):
  """Puts the spans of the targets back in place of the sentinels of the inputs."""
  sentinels = [first_sentinel - i for i in range(num_spans + 1)]
  taken, current = {}, None
  for token in targets:
    if token in sentinels:
      current = taken.setdefault(token, [])
    else:
      current.append(token)
  return [t for token in inputs for t in (taken[token] if token in sentinels else [token])]


@settings(max_examples=300, deadline=None)
@given(length=strategies.integers(1, 600), density=strategies.floats(0.1, 0.5),
       span=strategies.floats(1, 10), seed=strategies.integers(0, 2**31 - 3))
def test_splices_back_at_any_length(corrupt, length, density, span, seed):
  import tensorflow as tf

  # Ids 0 to 2 stand among the others: pad, EOS and unknown in a text change nothing. The sentinels
  # lie far enough above that 300 of them stay clear of the tokens.
  tokens = np.random.default_rng(seed).integers(0, 100, length).astype(np.int32)
  seeds = tf.constant([[seed, 1], [seed, 2]], tf.int32)
  inputs, targets = (x.numpy().tolist() for x in corrupt(tokens, density, span, seeds))
  num_noise, num_spans = spans.noise_counts(length, density, span)
  assert splice(inputs, targets, num_spans) == tokens.tolist()
  if length > 1:
    assert (len(inputs) + 1, len(targets) + 1) == spans.corrupted_lengths(length, density, span)


def test_lengths_of_the_papers():
  assert spans.random_spans_helper(512) == (568, 114)
  assert spans.random_spans_helper(128) == (141, 29)
  assert spans.random_spans_helper(256) == (284, 58)
  assert spans.random_spans_helper(1024) == (1137, 229)


def test_helper_equals_t5(oracle):
  for inputs in (64, 100, 256, 512, 777):
    for density, span in ((0.15, 3.0), (0.15, 10.0), (0.3, 3.0), (0.5, 3.0)):
      length, targets = oracle.random_spans_helper(inputs, density, span, 1, 1, verbose=False)
      # At half noise t5 takes a token off both numbers, though the targets may lose a span as well.
      exact = spans.corrupted_lengths(length, density, span)[1] if density == 0.5 else targets
      assert spans.random_spans_helper(inputs, density, span) == (length, exact)
      assert targets - exact in (0, 1)


@settings(max_examples=200, deadline=None)
@given(inputs=strategies.integers(3, 300), density=strategies.floats(0.1, 0.5),
       span=strategies.floats(1, 10))
def test_no_segment_outgrows_the_features(inputs, density, span):
  length, targets = spans.random_spans_helper(inputs, density, span)
  for shorter in range(2, length + 1):
    lengths = spans.corrupted_lengths(shorter, density, span)
    assert lengths[0] <= inputs and lengths[1] <= targets


@pytest.mark.parametrize("length", [1, 2, 3, 10, 50, 141, 568])
@pytest.mark.parametrize("density, span", [(0.15, 3.0), (0.5, 3.0), (0.3, 8.0)])
def test_mask_and_sentinels_equal_t5(preprocessors, oracle, output_features, length, density, span):
  import tensorflow as tf

  vocabulary = output_features["targets"].vocabulary
  for seed in range(5):
    seeds = tf.constant([[seed, 7], [seed, 8]], tf.int32)
    mask = preprocessors.random_spans_noise_mask(length, density, seeds, span)
    expected = oracle.random_spans_noise_mask(length, density, seeds, span)
    np.testing.assert_array_equal(mask, expected)
    tokens = tf.range(3, 3 + length)
    for ours, theirs in ((mask, oracle.noise_span_to_unique_sentinel),
                         (~mask, oracle.nonnoise_span_to_unique_sentinel)):
      np.testing.assert_array_equal(
          preprocessors.spans_to_sentinels(tokens, ours, vocabulary.vocab_size - 1),
          theirs(tokens, mask, vocabulary, seeds))


def test_examples_equal_t5_for_the_same_seed(preprocessors, oracle, output_features):
  """The whole last step, seeds included: t5's denoise with seqio's EOS against ours."""
  import functools

  import seqio
  import tensorflow as tf

  tokens = np.random.default_rng(0).integers(3, 400, [6, 70]).astype(np.int32)
  dataset = tf.data.Dataset.from_tensor_slices({"targets": tokens})
  with seqio.utils.map_seed_manager(5):
    ours = list(preprocessors.span_corruption(
        dataset, output_features, LENGTHS).as_numpy_iterator())
  with seqio.utils.map_seed_manager(5):
    theirs = oracle.denoise(
        dataset, output_features, noise_density=0.15,
        inputs_fn=oracle.noise_span_to_unique_sentinel,
        targets_fn=oracle.nonnoise_span_to_unique_sentinel,
        noise_mask_fn=functools.partial(oracle.random_spans_noise_mask, mean_noise_span_length=3.0))
    theirs = seqio.preprocessors.append_eos(theirs, output_features)
  for mine, reference in zip(ours, theirs.as_numpy_iterator(), strict=True):
    np.testing.assert_array_equal(mine["inputs"], reference["inputs"])
    np.testing.assert_array_equal(mine["targets"], reference["targets"])


def documents_dataset(texts, passes=1):
  import tensorflow as tf

  dataset = tf.data.Dataset.from_tensor_slices(
      {"text": texts, "index": np.arange(len(texts), dtype=np.int64)})
  return dataset.repeat(passes)


def test_segments_are_full_and_hold_every_token(preprocessors, output_features, vocabulary):
  texts = [f"{i} øen ligger ved havet " * (1 + i % 40) for i in range(300)]
  segments = list(preprocessors.tokenize_and_concat(
      documents_dataset(texts, passes=2), output_features, LENGTHS).as_numpy_iterator())
  length, _ = spans.random_spans_helper(LENGTHS["inputs"])
  assert all(len(s["targets"]) == length for s in segments[:-1])
  assert 0 < len(segments[-1]["targets"]) <= length
  tokens = np.concatenate([s["targets"] for s in segments])
  once = np.concatenate([vocabulary.encode(text) for text in texts])
  np.testing.assert_array_equal(tokens, np.tile(once, 2))
  # The epoch is that of a segment's last token.
  ends = np.cumsum([len(s["targets"]) for s in segments]) - 1
  assert [int(s["epoch"]) for s in segments] == [int(end >= len(once)) for end in ends]


def test_passes_over_a_single_document_are_counted(preprocessors, output_features):
  segments = preprocessors.tokenize_and_concat(
      documents_dataset(["øen ligger ved havet " * 60], passes=4), output_features, LENGTHS)
  epochs = [int(s["epoch"]) for s in segments.as_numpy_iterator()]
  assert epochs == sorted(epochs) and set(epochs) == {0, 1, 2, 3}


def test_giant_documents_give_one_random_chunk(preprocessors, output_features, vocabulary):
  import seqio

  giant = " ".join(str(i) for i in range(400))
  ids = vocabulary.encode(giant)
  starts = set()
  for seed in range(8):
    with seqio.utils.map_seed_manager(seed):
      segments = preprocessors.tokenize_and_concat(
          documents_dataset(["kort", giant]), output_features, LENGTHS, max_document_tokens=100)
    tokens = np.concatenate([s["targets"] for s in segments.as_numpy_iterator()]).tolist()
    short = vocabulary.encode("kort")
    assert tokens[:len(short)] == short
    chunk = tokens[len(short):]
    start, = [s for s in range(0, len(ids), 100) if ids[s:s + 100] == chunk]
    starts.add(start)
  assert len(starts) > 2


def test_literal_sentinels_in_text_stay_text(preprocessors, output_features, vocabulary):
  dataset = preprocessors.tokenize_and_concat(
      documents_dataset(["<extra_id_3> </s> <pad>"]), output_features, LENGTHS)
  tokens = next(dataset.as_numpy_iterator())["targets"]
  assert tokens.min() > 1 and tokens.max() < vocabulary.num_pieces


def test_wrong_order_is_named(preprocessors, output_features):
  import tensorflow as tf

  from t5jax.data.text_files import DataError

  raw = documents_dataset(["text"])
  with pytest.raises(DataError, match="step span_corruption: expected feature 'targets' of int32 "
                                      "and rank 1; present: 'text' of string"):
    preprocessors.span_corruption(raw, output_features, LENGTHS)
  tokens = tf.data.Dataset.from_tensors({"targets": [3, 4]})
  with pytest.raises(DataError, match="step tokenize_and_concat: expected feature 'text'"):
    preprocessors.tokenize_and_concat(tokens, output_features, LENGTHS)


@pytest.mark.parametrize("lengths, noise, problem", [
    ({"inputs": 512, "targets": 113}, {}, r"\['targets'\] = 113.*>= 114"),
    ({"inputs": 4096, "targets": 4096}, {}, r"\['inputs'\] = 4096.*227 spans.*has 100"),
    ({"inputs": 512}, {}, "a length for 'targets'"),
    ({"inputs": 2, "targets": 9}, {}, "inputs_length = 2"),
    ({"inputs": 64, "targets": 64}, {"noise_density": 0.0}, "noise_density = 0.0"),
    ({"inputs": 64, "targets": 64}, {"mean_noise_span_length": 0.5}, "mean_noise_span_length")])
def test_lengths_that_do_not_fit_are_refused(lengths, noise, problem):
  with pytest.raises(SettingError, match=problem):
    spans.check_span_lengths(lengths, 100, **noise)

"""Objectives: reversible at any length, within their lengths, T5's distribution, UL2's parts."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from t5jax.data import objectives, spans
from t5jax.data.objectives import (Denoiser, IidDenoising, MixtureOfDenoisers, PrefixLM,
                                   SpanCorruption)
from t5jax.settings import SettingError


class Ids:
  """As much of a Vocabulary as an objective uses; the sentinels lie far above the tokens."""

  eos_id = 1

  def __init__(self, extra_ids=100):
    self.extra_ids = extra_ids

  def sentinel_id(self, index):
    return 9999 - index


IDS = Ids()
T5_LENGTHS = {"inputs": 512, "targets": 114}
EVEN = {"inputs": 512, "targets": 512}


def make(objective, tokens, feature_lengths=EVEN, seed=0):
  generators = objectives.row_generators(seed, range(len(tokens)))
  return objective.corrupt(tokens, generators, IDS, feature_lengths)


def random_tokens(rows, length, seed=0):
  """Ids 0, 1 and 2 stand among the others: pad, EOS and unknown in a text change nothing."""
  return np.random.default_rng(seed).integers(0, 100, (rows, length)).astype(np.int32)


def row_of(padded):
  """The tokens of a padded row, without the EOS that must end it."""
  row = padded[padded >= 0].tolist()
  assert row[-1] == 1
  return row[:-1]


def splice(inputs, targets):
  """Puts the spans of the targets back in place of the sentinels of the inputs."""
  taken, current = {}, None
  for token in targets:
    if token > 9000:
      assert token == 9999 - len(taken), "the sentinels count from <extra_id_0>"
      current = taken.setdefault(token, [])
    else:
      current.append(token)
  assert [t for t in inputs if t > 9000] == list(taken), "the same sentinels, in the same order"
  return [t for token in inputs for t in (taken[token] if token in taken else [token])]


def assert_splices_back(objective, tokens, feature_lengths=EVEN, seed=0):
  inputs, targets = make(objective, tokens, feature_lengths, seed)
  for row, read, write in zip(tokens.tolist(), inputs, targets, strict=True):
    assert splice(row_of(read), row_of(write)) == row
  return inputs, targets


@settings(max_examples=150, deadline=None)
@given(length=strategies.integers(1, 600), density=strategies.floats(0.1, 0.5),
       span=strategies.floats(1, 10), seed=strategies.integers(0, 2**63))
def test_spans_splice_back_at_any_length(length, density, span, seed):
  tokens = random_tokens(3, length, seed)
  inputs, targets = assert_splices_back(SpanCorruption(density, span), tokens, seed=seed)
  if length > 1:
    assert (inputs.shape[1], targets.shape[1]) == spans.corrupted_lengths(length, density, span)


@pytest.mark.parametrize("length", [*range(1, 40), 568, 1137, 2049, 4096])
def test_t5s_settings_splice_back(length):
  assert_splices_back(SpanCorruption(), random_tokens(2, length, length), seed=length)


def test_density_and_span_length_over_ten_thousand_examples():
  """The claim of the paper: 15 % of the tokens in spans of 3; ours is exact to rounding."""
  length = SpanCorruption().segment_length(T5_LENGTHS, 100)
  assert length == 568
  masked = num_spans = 0
  for seed in range(10):
    mask = SpanCorruption().mask(length, objectives.row_generators(seed, range(1000)))
    masked += mask.sum()
    num_spans += objectives._begins(mask).sum()
  assert masked / (10_000 * length) == pytest.approx(0.15, abs=0.002)
  assert masked / num_spans == pytest.approx(3.0, abs=0.1)


def test_every_mask_is_equally_likely_as_in_t5():
  """All masks of 12 tokens, 4 of them noise in 2 spans: 7 ways to split 8, times 3 to split 4."""
  objective = SpanCorruption(0.35, 2.0)
  count = 21_000
  masks = objective.mask(12, objectives.row_generators(5, range(count)))
  found = collections.Counter(map(tuple, masks.tolist()))
  assert len(found) == 21
  expected = count / 21
  # Chi-squared with 20 degrees of freedom: above 45.3 once in a thousand seeds.
  assert sum((n - expected) ** 2 / expected for n in found.values()) < 45.3


def test_masks_are_those_that_t5_can_draw():
  oracle = pytest.importorskip("t5.data.preprocessors")
  import tensorflow as tf

  objective = SpanCorruption(0.35, 2.0)
  ours = set(map(tuple, objective.mask(12, objectives.row_generators(5, range(2000))).tolist()))
  draw = tf.function(lambda seeds: oracle.random_spans_noise_mask(
      12, 0.35, tf.unstack(seeds), 2.0))
  seeds = np.random.default_rng(0).integers(0, 2**31, (300, 2, 2)).astype(np.int32)
  theirs = {tuple(draw(tf.constant(pair)).numpy().tolist()) for pair in seeds}
  assert theirs == ours


@pytest.mark.parametrize("length", [2, 40, 141, 568])
def test_sentinels_equal_t5(length):
  """The same mask gives the ids that t5's two functions give."""
  oracle = pytest.importorskip("t5.data.preprocessors")
  import tensorflow as tf

  class Vocabulary:
    vocab_size = 10_000

  tokens = random_tokens(4, length)
  objective = SpanCorruption()
  inputs, targets = make(objective, tokens)
  masks = objective.mask(length, objectives.row_generators(0, range(4)))
  for row in range(4):
    if not masks[row, 0] and masks[row, -1]:  # The masks that t5 knows.
      arguments = tf.constant(tokens[row]), tf.constant(masks[row]), Vocabulary, None
      np.testing.assert_array_equal(
          inputs[row, :-1], oracle.noise_span_to_unique_sentinel(*arguments))
      np.testing.assert_array_equal(
          targets[row, :-1], oracle.nonnoise_span_to_unique_sentinel(*arguments))


def test_a_single_span_lies_anywhere():
  """A short text is not always masked at its end."""
  masks = SpanCorruption().mask(12, objectives.row_generators(0, range(2000)))
  first = collections.Counter(masks.argmax(axis=1).tolist())
  assert set(first) == set(range(11)) and masks.sum(axis=1).tolist() == [2] * 2000
  assert min(first.values()) > 120  # 182 expected, with a deviation of 13.


def test_a_row_depends_on_its_own_generator_alone():
  tokens = random_tokens(6, 200)
  whole = make(SpanCorruption(), tokens)
  alone = SpanCorruption().corrupt(tokens[4:5], objectives.row_generators(0, [4]), IDS, EVEN)
  np.testing.assert_array_equal(whole[0][4:5], alone[0])
  other = make(SpanCorruption(), tokens, seed=1)
  assert (whole[0] != other[0]).any()


def test_generators_tell_large_neighbours_apart():
  """Keys and rows beyond 2**53 must not pass through a float."""
  draws = {g.random() for key in (2**63, 2**63 + 1)
           for g in objectives.row_generators(key, [2**64 - 1, 2**64 - 2])}
  assert len(draws) == 4


def test_iid_noise():
  lengths = {"inputs": 512, "targets": 200}
  objective = IidDenoising()
  length = objective.segment_length(lengths, 100)
  assert length == 511
  tokens = random_tokens(2000, length)
  inputs, targets = assert_splices_back(objective, tokens, lengths)
  assert inputs.shape[1] <= 512 and targets.shape[1] <= 200
  kept = ((inputs >= 0) & (inputs < 9000)).sum() - len(tokens)  # Without EOS.
  # 1,022,000 draws: a standard deviation of 0.00035.
  assert 1 - kept / tokens.size == pytest.approx(0.15, abs=0.0015)


def test_iid_noise_never_outgrows_targets_or_sentinels():
  tokens = random_tokens(500, 80)
  inputs, targets = make(IidDenoising(0.4), tokens, {"inputs": 81, "targets": 30})
  assert targets.shape[1] == 30 and (inputs < 0).any()
  for row, read, write in zip(tokens.tolist(), inputs, targets):
    assert splice(row_of(read), row_of(write)) == row


def test_prefix_lm_splits_evenly_without_sentinels():
  objective = PrefixLM()
  assert objective.segment_length({"inputs": 64, "targets": 64}, 0) == 64
  tokens = random_tokens(3000, 64)
  inputs, targets = make(objective, tokens, {"inputs": 64, "targets": 64})
  splits = collections.Counter()
  for row, read, write in zip(tokens.tolist(), inputs, targets):
    assert row_of(read) + row_of(write) == row
    splits[len(row_of(read))] += 1
  assert set(splits) == set(range(1, 64))
  assert make(objective, tokens, {"inputs": 64, "targets": 20})[1].shape[1] == 20


def test_prefix_lm_with_a_fraction_and_a_sentinel():
  objective = PrefixLM(0.25, sentinel=True)
  length = objective.segment_length({"inputs": 512, "targets": 512}, 100)
  tokens = random_tokens(3, length)
  inputs, targets = assert_splices_back(objective, tokens)
  assert inputs.shape[1] == 512  # They fill the inputs, EOS and sentinel included.
  assert targets.shape[1] - 2 == round(length / 4)


def test_a_single_token_survives_every_objective():
  for objective in (SpanCorruption(), IidDenoising(), PrefixLM(), PrefixLM(0.25), objectives.ul2()):
    inputs, targets = make(objective, np.array([[5]], np.int32))
    assert 5 in inputs or 5 in targets


def test_ul2_draws_seven_denoisers_evenly_behind_their_modes():
  objective = objectives.ul2()
  length = objective.segment_length(EVEN, 100)
  tokens = random_tokens(7000, length)
  inputs, targets = make(objective, tokens)
  assert inputs.shape == (7000, 512) and targets.shape == (7000, 512)
  kinds = collections.Counter()
  for row, read, write in zip(tokens.tolist(), inputs, targets):
    (mode, *read), write = row_of(read), row_of(write)
    assert splice(read, write) == row
    num_spans = sum(t > 9000 for t in read)
    kinds[9999 - mode, num_spans, len(write) - num_spans] += 1
  expected = {(mode, *reversed(spans.noise_counts(length, density, span))) for mode, density, span in
              [(99, .15, 3), (99, .15, 8), (97, .5, 3), (97, .5, 8), (97, .15, 64), (97, .5, 64)]}
  assert set(kinds) == expected | {(98, 1, round(length / 4))}
  assert all(850 < n < 1150 for n in kinds.values())  # 1,000 expected, with a deviation of 29.


def test_rates_of_denoisers():
  objective = MixtureOfDenoisers((Denoiser(PrefixLM(0.5), rate=3, mode=7),
                                  Denoiser(PrefixLM(0.25), rate=1)))
  inputs, _ = make(objective, random_tokens(4000, 100))
  share = (inputs[:, 0] == 9992).mean()
  assert share == pytest.approx(0.75, abs=0.03)  # Four deviations.


@pytest.mark.parametrize("build, lengths, problem", [
    (lambda: SpanCorruption(), {"inputs": 512, "targets": 113}, r"\['targets'\] = 113.*>= 114"),
    (lambda: SpanCorruption(), {"inputs": 4096, "targets": 4096}, r"227 spans.*has 100"),
    (lambda: IidDenoising(), {"inputs": 512, "targets": 114}, r"\['targets'\] = 114.*>= "),
    (lambda: IidDenoising(0.3), EVEN, "sentinels"),
    (lambda: PrefixLM(sentinel=True), {"inputs": 2, "targets": 9}, "room for a token"),
    (lambda: objectives.ul2(), T5_LENGTHS, r"\['targets'\] = 114"),
    (lambda: objectives.ul2(), {"inputs": 1024, "targets": 1024}, "189 spans.*has 97 free"),
    (lambda: SpanCorruption(noise_density=0.0), EVEN, "noise_density = 0.0"),
    (lambda: PrefixLM(target_fraction=1.5), EVEN, "target_fraction = 1.5"),
    (lambda: MixtureOfDenoisers(()), EVEN, "at least one Denoiser"),
    (lambda: Denoiser(PrefixLM(), rate=0), EVEN, "rate = 0")])
def test_what_does_not_fit_is_refused(build, lengths, problem):
  with pytest.raises(SettingError, match=problem):
    build().segment_length(lengths, 100)

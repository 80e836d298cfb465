"""T5's span corruption as seqio preprocessors (arXiv:1910.10683, section 3.1.4).

Equal to `t5.data.preprocessors` where they can be compared. Documents are tokenised 128 at a time,
which saves most of tf.data's cost per element, and what one group leaves over begins the next group's
first segment: nothing is padded and nothing is dropped. Like T5, no EOS stands between documents.
"""

import functools

import seqio
import tensorflow as tf
import tensorflow_text as tf_text

from t5jax.data.spans import check_span_lengths, random_spans_helper
from t5jax.data.text_files import DataError

__all__ = ["random_spans_helper", "tokenize_and_concat", "span_corruption",
           "random_spans_noise_mask", "spans_to_sentinels"]

_BATCH_DOCUMENTS = 128
_MAX_DOCUMENT_TOKENS = 65536


def tokenize_and_concat(dataset, output_features, sequence_length, noise_density=0.15,
                        mean_noise_span_length=3.0, max_document_tokens=_MAX_DOCUMENT_TOKENS):
  """Turns documents into segments of exactly the length that span corruption needs.

  Of a longer document a random chunk of `max_document_tokens` is taken, as T5 does: another one in
  each epoch. The tokenizer knows no sentinels, so `<extra_id_0>` or `</s>` in a text are ordinary
  characters. Where the source numbers its documents, each pass from 0, the passes are counted.

  Args:
    dataset: of {"text": string [], "index": int64 [], optional}.
    output_features: seqio features; "targets" has a SentencePiece vocabulary.
    sequence_length: {"inputs": int, "targets": int}, EOS included.
    noise_density: fraction of the tokens to corrupt.
    mean_noise_span_length: tokens per corrupted span.
    max_document_tokens: longest part of a document to use in one epoch.

  Returns:
    Dataset of {"targets": int32 [tokens]}, all full but the last of a finite pass, and
    "epoch": int32 [] of the last token, if there is an "index".

  Raises:
    DataError: the dataset has no text.
    SettingError: the lengths do not fit.
  """
  _require(dataset, "tokenize_and_concat", "text", tf.string, 0)
  vocabulary = output_features["targets"].vocabulary
  length = check_span_lengths(sequence_length, vocabulary.extra_ids, noise_density,
                              mean_noise_span_length)
  tokenizer = _plain_tokenizer(vocabulary)
  counted = "index" in dataset.element_spec

  @seqio.map_over_dataset(num_seeds=1)
  def tokenize(documents, seed):
    tokens = tokenizer.tokenize(documents["text"])
    tokens = _random_chunks(tokens, max_document_tokens, seed)
    index = documents["index"] if counted else tf.zeros_like(tokens.row_lengths())
    return {"tokens": tokens.flat_values, "lengths": tokens.row_lengths(), "index": index}

  # An element without documents comes after the last: it flushes what is left.
  end = tf.data.Dataset.from_tensors({
      "tokens": tf.zeros([0], tf.int32), "lengths": tf.zeros([0], tf.int64),
      "index": tf.zeros([0], tf.int64)})
  groups = tokenize(dataset.batch(_BATCH_DOCUMENTS)).concatenate(end)
  segments = groups.scan(
      (tf.zeros([0], tf.int32), tf.constant(0), tf.constant(-1, tf.int64)),
      functools.partial(_cut_segments, length))
  segments = segments.unbatch()
  return segments if counted else segments.map(lambda x: {"targets": x["targets"]})


def _plain_tokenizer(vocabulary):
  with tf.io.gfile.GFile(vocabulary.sentencepiece_model_file, "rb") as model:
    return tf_text.SentencepieceTokenizer(model=model.read())


def _random_chunks(tokens, max_length, seed):
  """Keeps of each row of a ragged [documents, None] one of its chunks of max_length, at random."""

  def choose():
    lengths = tokens.row_lengths()
    num_chunks = tf.maximum((lengths + max_length - 1) // max_length, 1)
    uniform = tf.random.stateless_uniform(tf.shape(lengths), seed, dtype=tf.float64)
    starts = max_length * tf.cast(uniform * tf.cast(num_chunks, tf.float64), tf.int64)
    position = tf.ragged.range(lengths).flat_values
    start = tf.gather(starts, tokens.value_rowids())
    inside = (position >= start) & (position < start + max_length)
    return tf.ragged.boolean_mask(tokens, tokens.with_flat_values(inside))

  too_long = tf.reduce_any(tokens.row_lengths() > max_length)
  return tf.cond(too_long, choose, lambda: tokens)


def _cut_segments(length, carry, group):
  """One step of the scan: cuts what was left over and a new group into segments.

  Args:
    length: tokens per segment.
    carry: (int32 [left], tokens left over; int32 [], epoch; int64 [], index of the last document).
    group: {"tokens": int32 [N], "lengths": int64 [documents], "index": int64 [documents]}.

  Returns:
    (new carry, {"targets": int32 [segments, length], "epoch": int32 [segments]}).
  """
  left, epoch, last_index = carry
  is_end = tf.equal(tf.size(group["lengths"]), 0)
  # A new pass begins where the running number of the documents does not grow.
  indices = tf.concat([last_index[None], group["index"]], 0)
  epochs = epoch + tf.cumsum(tf.cast(indices[1:] <= indices[:-1], tf.int32))
  tokens = tf.concat([left, group["tokens"]], 0)
  token_epochs = tf.concat([tf.fill(tf.shape(left), epoch), tf.repeat(epochs, group["lengths"])], 0)

  num_segments = tf.size(tokens) // length
  whole = num_segments * length
  segments = {"targets": tf.reshape(tokens[:whole], [num_segments, length]),
              "epoch": token_epochs[length - 1:whole:length]}
  rest = tokens[whole:]
  last = {"targets": rest[None], "epoch": epoch[None]}
  flush = is_end & (tf.size(rest) > 0)
  segments = tf.cond(flush, lambda: last, lambda: segments)
  epoch = tf.concat([epoch[None], epochs], 0)[-1]
  return (rest, epoch, indices[-1]), segments


def span_corruption(dataset, output_features, sequence_length, noise_density=0.15,
                    mean_noise_span_length=3.0):
  """Masks random spans; the inputs keep the rest, the targets hold what was masked.

  "We hold these truths to be self evident" may become inputs "We hold <extra_id_0> to be
  <extra_id_1> evident </s>", targets "<extra_id_0> these truths <extra_id_1> self </s>".

  Args:
    dataset: of {"targets": int32 [tokens], "epoch": int32 [], optional}.
    output_features: seqio features; "targets" has a SentencePiece vocabulary.
    sequence_length: {"inputs": int, "targets": int}, EOS included.
    noise_density: fraction of the tokens to corrupt.
    mean_noise_span_length: tokens per corrupted span.

  Returns:
    Dataset of {"inputs": int32 [<= inputs], "targets": int32 [<= targets]} and what else there was.

  Raises:
    DataError: the dataset holds no token ids.
    SettingError: the lengths do not fit, or there are more spans than sentinels.
  """
  _require(dataset, "span_corruption", "targets", tf.int32, 1)
  vocabulary = output_features["targets"].vocabulary
  check_span_lengths(sequence_length, vocabulary.extra_ids, noise_density, mean_noise_span_length)
  first_sentinel = vocabulary.vocab_size - 1
  eos = tf.constant([vocabulary.eos_id])

  @seqio.map_over_dataset(num_seeds=1)
  def corrupt(segment, seed):
    tokens = segment["targets"]
    # The split into six is T5's: the same seed gives the same mask.
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 6))[:2]
    mask = random_spans_noise_mask(tf.size(tokens), noise_density, seeds, mean_noise_span_length)
    return {**segment,
            "inputs": tf.concat([spans_to_sentinels(tokens, mask, first_sentinel), eos], 0),
            "targets": tf.concat([spans_to_sentinels(tokens, ~mask, first_sentinel), eos], 0)}

  return corrupt(dataset)


def random_spans_noise_mask(length, noise_density, seeds, mean_noise_span_length=3.0):
  """Draws a mask of spans; non-noise comes first, noise last, all such masks equally likely.

  Args:
    length: int32 scalar tensor, at least 1.
    noise_density: fraction of the tokens to mask.
    seeds: two int32 [2] seeds, for the noise and for the non-noise spans.
    mean_noise_span_length: tokens per span.

  Returns:
    bool [length], True where masked. Bit-equal to `t5.data.preprocessors` for the same seeds.
  """
  total = tf.maximum(length, 2)
  num_noise = tf.cast(tf.round(tf.cast(total, tf.float32) * noise_density), tf.int32)
  num_noise = tf.clip_by_value(num_noise, 1, total - 1)
  num_spans = tf.cast(
      tf.round(tf.cast(num_noise, tf.float32) / mean_noise_span_length), tf.int32)
  # There is a non-noise span before each noise span, of a token at least. (T5 fails here.)
  num_spans = tf.clip_by_value(num_spans, 1, total - num_noise)
  noise = _span_lengths(num_noise, num_spans, seeds[0])
  kept = _span_lengths(total - num_noise, num_spans, seeds[1])
  lengths = tf.reshape(tf.stack([kept, noise], axis=1), [-1])
  is_noise = tf.tile([False, True], [num_spans])
  return tf.repeat(is_noise, lengths)[:length]


def _span_lengths(num_tokens, num_spans, seed):
  """Cuts tokens into non-empty spans at random: int32 [num_spans] that add up to num_tokens."""
  begins_span = seqio.stateless_shuffle(tf.range(num_tokens - 1) < num_spans - 1, seed)
  begins = 1 + tf.cast(tf.where(begins_span)[:, 0], tf.int32)
  return tf.concat([begins, [num_tokens]], 0) - tf.concat([[0], begins], 0)


def spans_to_sentinels(tokens, mask, first_sentinel):
  """Replaces each masked span by one sentinel: the first by first_sentinel, then downwards.

  Args:
    tokens: int32 [length].
    mask: bool [length].
    first_sentinel: id of `<extra_id_0>`.

  Returns:
    int32 [length - masked + spans].
  """
  after_masked = tf.concat([[False], mask[:-1]], 0)
  begins = mask & ~after_masked
  sentinels = first_sentinel + 1 - tf.cumsum(tf.cast(begins, tf.int32))
  return tf.boolean_mask(tf.where(begins, sentinels, tokens), ~(mask & after_masked))


def _require(dataset, step, feature, dtype, rank):
  """Raises DataError unless the dataset's elements have the feature that a step works on."""
  present = dataset.element_spec
  if not isinstance(present, dict):
    present = {"(unnamed)": present}
  spec = present.get(feature)
  if isinstance(spec, tf.TensorSpec) and spec.dtype == dtype and spec.shape.rank in (rank, None):
    return
  have = ", ".join(f"{name!r} of {s.dtype.name} and rank {s.shape.rank}"
                   for name, s in present.items())
  raise DataError(f"step {step}: expected feature {feature!r} of {dtype.name} and rank {rank}; "
                  f"present: {have}. Is the order of the preprocessors right?")

"""Pretraining as a seqio preprocessor: documents of text become examples of an objective.

Documents are tokenised 128 at a time, which saves most of tf.data's cost per element, and what one
group leaves over begins the next group's first segment: nothing is padded and nothing is dropped.
Like in T5, no EOS stands between documents.
"""

import functools

import numpy as np
import seqio
import tensorflow as tf

from t5jax.data.features import PADDING, widen
from t5jax.data.objectives import row_generators
from t5jax.data.text_files import DataError
from t5jax.data.vocabulary import Vocabulary

_BATCH_DOCUMENTS = 128
_CORRUPTED_SEGMENTS = 256


def pretrain(dataset, output_features, sequence_length, objective):
  """Turns documents into examples: tokens, segments of one length, inputs and targets.

  The tokenizer knows no sentinels, so `<extra_id_0>` or `</s>` in a text are ordinary characters.
  Where the source numbers its documents, each pass from 0, the passes are counted.

  Args:
    dataset: of {"text": string [], "index": int64 [], optional}.
    output_features: seqio features; "targets" has a SentencePiece vocabulary.
    sequence_length: {"inputs": int, "targets": int}, EOS included.
    objective: an objectives.Objective.

  Returns:
    Dataset of {"inputs": int32 [<= inputs], "targets": int32 [<= targets]} and "epoch": int32 [],
    that of the segment's last token, if there is an "index".

  Raises:
    DataError: the dataset has no text.
    SettingError: the lengths do not fit.
  """
  groups = padded_groups(dataset, output_features, sequence_length, objective)

  def strip(example):
    return {**example, **{name: tf.boolean_mask(example[name], example[name] != PADDING)
                          for name in ("inputs", "targets")}}

  return groups.unbatch().map(strip)


def padded_groups(dataset, output_features, sequence_length, objective):
  """Does what `pretrain` does, but for the last step: examples stay together and padded.

  Args, errors: see `pretrain`.

  Returns:
    Dataset of {"inputs": int32 [n, inputs], "targets": int32 [n, targets]}, padded with -1, and
    "epoch": int32 [n], if there is an "index".
  """
  vocabulary = Vocabulary.of(output_features["targets"].vocabulary)
  length = objective.segment_length(sequence_length, vocabulary.extra_ids)
  segments = cut_segments(tokenize(dataset, vocabulary), length)
  examples = _corrupt(segments, vocabulary, sequence_length, objective)
  return examples if "index" in dataset.element_spec else examples.map(
      lambda x: {name: x[name] for name in ("inputs", "targets")})


def objective_of(task):
  """Returns the objective of a seqio task whose only preprocessor is `pretrain`, else None."""
  step = task.preprocessors[0] if len(task.preprocessors) == 1 else None
  if isinstance(step, functools.partial) and step.func is pretrain:
    return step.keywords["objective"]
  return None


def tokenize(dataset, vocabulary):
  """Tokenises documents in groups.

  Args:
    dataset: of {"text": string [], "index": int64 [], optional}.
    vocabulary: Vocabulary.

  Returns:
    Dataset of {"tokens": int32 [N], "lengths": int64 [documents], "index": int64 [documents]}.

  Raises:
    DataError: the dataset has no text.
  """
  _require_text(dataset)

  def encode(texts):
    return vocabulary.encode_batch([text.decode() for text in texts])

  def encode_documents(documents):
    # SentencePiece itself takes half the time of TensorFlow Text's tokenizer, for the same ids.
    tokens, lengths = tf.numpy_function(encode, [documents["text"]], [tf.int32, tf.int64],
                                        stateful=False)
    tokens.set_shape([None])
    lengths.set_shape([None])
    return {"tokens": tokens, "lengths": lengths,
            "index": documents.get("index", tf.zeros_like(lengths))}

  return dataset.batch(_BATCH_DOCUMENTS).map(encode_documents, num_parallel_calls=tf.data.AUTOTUNE)


def cut_segments(groups, length):
  """Joins the tokens of groups and cuts them into segments; the last of a finite pass is shorter.

  Args:
    groups: as from `tokenize`.
    length: tokens per segment.

  Returns:
    Dataset of {"tokens": int32 [segments, length], "epoch": int32 [segments]}.
  """
  # An element without documents comes after the last: it flushes what is left.
  end = tf.data.Dataset.from_tensors({
      "tokens": tf.zeros([0], tf.int32), "lengths": tf.zeros([0], tf.int64),
      "index": tf.zeros([0], tf.int64)})
  start = (tf.zeros([0], tf.int32), tf.constant(0), tf.constant(-1, tf.int64))
  segments = groups.concatenate(end).scan(start, functools.partial(_cut_group, length))
  return segments.filter(lambda x: tf.size(x["tokens"]) > 0)


def _cut_group(length, carry, group):
  """One step of the scan: cuts what was left over and a new group into segments.

  Args:
    length: tokens per segment.
    carry: (int32 [left], tokens left over; int32 [], epoch; int64 [], index of the last document).
    group: {"tokens": int32 [N], "lengths": int64 [documents], "index": int64 [documents]}.

  Returns:
    (new carry, {"tokens": int32 [segments, length], "epoch": int32 [segments]}).
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
  segments = {"tokens": tf.reshape(tokens[:whole], [num_segments, length]),
              "epoch": token_epochs[length - 1:whole:length]}
  rest = tokens[whole:]
  last = {"tokens": rest[None], "epoch": epoch[None]}
  flush = is_end & (tf.size(rest) > 0)
  segments = tf.cond(flush, lambda: last, lambda: segments)
  epoch = tf.concat([epoch[None], epochs], 0)[-1]
  return (rest, epoch, indices[-1]), segments


def deterministic(dataset):
  """Returns a dataset whose parallel steps keep their order."""
  options = tf.data.Options()
  options.deterministic = True
  return dataset.with_options(options)


def _corrupt(segments, vocabulary, feature_lengths, objective):
  """Applies an objective to groups of segments."""

  def corrupt(tokens, seed):
    key = int(seed.astype(np.uint32).view(np.uint64)[0])
    parts = []
    # A group of books makes thousands of segments: in parts their masks need little memory.
    for start in range(0, len(tokens), _CORRUPTED_SEGMENTS):
      part = tokens[start:start + _CORRUPTED_SEGMENTS]
      generators = row_generators(key, range(start, start + len(part)))
      parts.append(objective.corrupt(part, generators, vocabulary, feature_lengths))
    return [np.concatenate([widen(rows, feature_lengths[name]) for rows in batches])
            for name, batches in zip(("inputs", "targets"), zip(*parts))]

  @seqio.map_over_dataset(num_seeds=1)
  def examples(group, seed):
    inputs, targets = tf.numpy_function(corrupt, [group["tokens"], seed], [tf.int32, tf.int32],
                                        stateful=False)
    inputs.set_shape([None, feature_lengths["inputs"]])
    targets.set_shape([None, feature_lengths["targets"]])
    return {"inputs": inputs, "targets": targets, "epoch": group["epoch"]}

  return examples(segments)


def _require_text(dataset):
  """Raises DataError unless the dataset's elements have a text."""
  present = dataset.element_spec
  if not isinstance(present, dict):
    present = {"(unnamed)": present}
  spec = present.get("text")
  if isinstance(spec, tf.TensorSpec) and spec.dtype == tf.string and spec.shape.rank in (0, None):
    return
  have = ", ".join(f"{name!r} of {s.dtype.name} and rank {s.shape.rank}"
                   for name, s in present.items())
  raise DataError(f"step pretrain: expected feature 'text' of string and rank 0; present: {have}. "
                  "Is the order of the preprocessors right?")

"""Several short examples in one row, told apart by segment ids: seqio's packing, with our padding."""

import seqio
import tensorflow as tf

from t5jax.data.features import PADDING
from t5jax.data.text_files import DataError

SEGMENT_IDS = "_segment_ids"


def pack(examples, feature_lengths):
  """Fills each row with the examples that come next, for as long as they fit.

  Args:
    examples: dataset of {"inputs": int [n], "targets": int [m]}; what is longer than a row is cut.
    feature_lengths: {"inputs": int, "targets": int}, tokens of a row.

  Returns:
    Dataset of {"inputs": int32 [inputs], "targets": int32 [targets]}, padded with -1, and
    {"inputs_segment_ids", "targets_segment_ids"} of the same shapes: 1 for a row's first example, 2
    for its second ..., 0 for padding.

  Raises:
    DataError, from the dataset: an example without inputs or targets, of which seqio would count the
      segments differently in the two, or with an id 0, which it would take for padding.
  """
  def check(inputs, targets):
    for name, tokens in (("inputs", inputs), ("targets", targets)):
      if not (len(tokens) and tokens.all()):
        raise DataError(f"an example with the {name} {tokens.tolist()} cannot be packed: it needs inputs "
                        "and targets, without the id 0. TaskData.pack = False takes it")
    return inputs, targets

  def checked(example):
    names = ("inputs", "targets")
    tokens = [tf.cast(example[name], tf.int32) for name in names]
    tokens = tf.numpy_function(check, tokens, [tf.int32, tf.int32], stateful=False)
    return {name: tf.ensure_shape(x, [None]) for name, x in zip(names, tokens)}

  def padded(row):
    rows = {name: x for name, x in row.items() if not name.endswith("_positions")}
    return {**rows, **{name: tf.where(rows[name + SEGMENT_IDS] == 0, PADDING, rows[name])
                       for name in feature_lengths}}

  return seqio.trim_and_pack_dataset(examples.map(checked), feature_lengths).map(padded)

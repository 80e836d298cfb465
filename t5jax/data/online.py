"""Batches from a tf.data pipeline that tokenises and masks as it goes, with an exact position."""

import contextlib
import os
import re
import tempfile
import weakref

import numpy as np

from t5jax.data import features, position
from t5jax.data.text_files import DataError


class Elements:
  """Iterates over a tf.data.Dataset, and lets go of it before Python shuts down.

  TensorFlow's threads call Python to read files. Were the iterator alive when Python shuts down, as
  after Ctrl-C, each would wait for the other for ever: it goes before, by finalize's atexit.

  Attributes:
    alive: list of the one TensorFlow iterator, empty in the end. No other reference may be kept.
  """

  def __init__(self, dataset):
    """Begins at the first element."""
    self.alive = [iter(dataset)]
    weakref.finalize(self, self.alive.clear)

  def __iter__(self):
    return self

  def __next__(self):
    with clean_errors():
      return next(self.alive[0])

  def checkpoint(self):
    """Returns the position as a tf.train.Checkpoint."""
    import tensorflow as tf

    return tf.train.Checkpoint(iterator=self.alive[0])


class OnlineIterator:
  """Batches of NumPy arrays, with a position that can be saved and restored.

  Attributes:
    epoch: the pass over the data that the last batch belongs to, from 0, by its median where a
      shuffle buffer larger than a pass mixes several; None before the first batch, and where the
      task does not count passes.
  """

  def __init__(self, batches, fingerprint, rows=slice(None)):
    """Begins at the first batch.

    Args:
      batches: tf.data.Dataset of padded {"inputs", "targets"} over all hosts.
      fingerprint: dict of what must be the same for a saved position to make sense; None where none
        is going to be saved.
      rows: those of each batch that are this host's.
    """
    self._batches = Elements(batches)
    self._fingerprint, self._rows = fingerprint, rows
    self._was_saved = fingerprint is None
    self.epoch = None

  def __iter__(self):
    return self

  def __next__(self):
    batch = next(self._batches)
    if not self._was_saved:  # If it is impossible, the first checkpoint is too late to say so.
      with tempfile.TemporaryDirectory() as folder:
        self.save(os.path.join(folder, "position"))
    batch = {name: x.numpy() for name, x in batch.items()}
    if "epoch" in batch:
      self.epoch = int(np.median(batch["epoch"]))
    return features.to_model_batch({name: x[self._rows] for name, x in batch.items()})

  def save(self, path):
    """Writes the position behind the last batch, as files whose names begin with `path`.

    Raises:
      DataError: the data comes from something that has no position, such as a Python generator.
    """
    import tensorflow as tf

    with clean_errors():
      try:
        self._batches.checkpoint().write(str(path))
      except tf.errors.FailedPreconditionError as error:
        reason = error.message.partition("}} ")[2].partition(" [Op")[0]
        raise DataError("a run on this data could not be resumed, for its position cannot be saved "
                        f"({reason}) Let the task read files, or a cache of itself.") from error
    self._was_saved = True
    position.write(path, self._fingerprint, epoch=self.epoch)

  def restore(self, path):
    """Continues with the batch that came next when `save(path)` was called.

    Raises:
      DataError: no position was saved there, or it is of another pipeline: the message says what
        differs.
    """
    import tensorflow as tf

    state = position.read(path, self._fingerprint)
    try:
      self._batches.checkpoint().read(str(path)).assert_consumed()
    except (tf.errors.OpError, AssertionError) as error:
      raise DataError(f"{path}: the position does not fit this data pipeline, perhaps because "
                      "t5jax or TensorFlow changed since. Resume with the versions it was saved "
                      "with.") from error
    self.epoch = state["epoch"]


@contextlib.contextmanager
def clean_errors():
  """Turns errors that TensorFlow passes on from our readers back into a DataError of one line."""
  import tensorflow as tf

  try:
    yield
  except tf.errors.OpError as error:
    found = re.search(r"DataError: (.*)", error.message)
    if not found:
      raise
    raise DataError(found[1]) from None

"""Local text files as a seqio data source, native to tf.data so that its position can be saved."""

import functools

import numpy as np
import seqio
import tensorflow as tf

from t5jax.data import holdout
from t5jax.data.text_files import DataError

_OPEN_FILES = 16  # Read in turn, a block of each.
_OPEN_FETCHED_FILES = 2  # Few, since the first batch waits for them.
_ENDLESS = np.iinfo(np.int64).max


class TextSource(seqio.DataSource):
  """Documents of TextFiles, as {"text": string [], "index": int64 []}.

  "index" numbers the documents of one pass from 0, on each host for itself. With `shuffle`, the
  files are read in another order in each pass. Hosts share the files out if there are enough,
  and otherwise take turns at the documents.
  """

  def __init__(self, files, validation=None, validation_fraction=0.0):
    """Wraps files.

    Args:
      files: TextFiles to train on.
      validation: TextFiles of the validation split.
      validation_fraction: without such files, the fraction of the documents to hold out.
    """
    splits = ("train", "validation") if validation or validation_fraction else ("train",)
    super().__init__(splits=splits, caching_permitted=False)
    self._files = files
    self._validation = validation
    self._validation_fraction = validation_fraction

  supports_arbitrary_sharding = True

  def files(self, split):
    """Returns the TextFiles that a split is read from."""
    if split not in self.splits:
      raise DataError(f"no split {split!r}, only {' and '.join(self.splits)}.")
    return self._validation if split == "validation" and self._validation else self._files

  def list_shards(self, split):
    """Returns the names of the files of a split."""
    return list(self.files(split).paths)

  @functools.cached_property
  def _threshold(self):
    if self._validation or not self._validation_fraction:
      return None
    return holdout.threshold(self._files.iterate(), self._validation_fraction)

  def documents(self, split):
    """Iterates over the texts of a split, in Python."""
    texts = self.files(split).iterate()
    return texts if self._threshold is None else (x for x in texts if self._belongs(split, x))

  def _belongs(self, split, text):
    return (holdout.text_hash(text) < self._threshold) == (split == "validation")

  def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None, *,
                  sequence_length=None, use_cached=False, num_epochs=1):
    """Returns the documents of one pass; see the class and seqio.DataSource.

    Reading raises a TensorFlow error whose text holds that of the DataError; the iterator of
    this package turns it back.
    """
    del sequence_length, use_cached, num_epochs
    files = self.files(split)
    _ = self._threshold  # Its error would come wrapped out of TensorFlow's graph.
    num_files = len(files.paths)
    by_file = shard_info is not None and num_files >= shard_info.num_shards
    indices = tf.data.Dataset.range(num_files)
    if by_file:
      indices = indices.shard(shard_info.num_shards, shard_info.index)
    if shuffle:
      indices = indices.shuffle(num_files, seed=seed, reshuffle_each_iteration=True)
    num_open = min(num_files, _OPEN_FILES)
    if files.fetch is not None:
      # The next files are fetched while those before are read: as many as may end together.
      num_open = min(num_files, _OPEN_FETCHED_FILES)
      indices = indices.map(functools.partial(_fetch, files)).prefetch(num_open)
    texts = indices.interleave(functools.partial(self._blocks, split), cycle_length=num_open,
                               block_length=1).unbatch()
    if shard_info is not None and not by_file:
      texts = texts.shard(shard_info.num_shards, shard_info.index)
    return _numbered(texts)

  def _blocks(self, split, index):
    """Dataset of string [documents]: the blocks of the file at a position in the list."""
    files = self.files(split)
    threshold = self._threshold

    def read(index, offset):
      block = files.read(int(index), int(offset))
      texts = block.texts
      if threshold is not None:
        texts = [text for text in texts if self._belongs(split, text)]
      return np.array([text.encode() for text in texts], object), np.int64(block.next_offset)

    def step(offset, _):
      texts, next_offset = tf.numpy_function(read, [index, offset], [tf.string, tf.int64],
                                             stateful=False)
      texts.set_shape([None])
      next_offset.set_shape([])
      return next_offset, (texts, next_offset > offset)

    blocks = tf.data.Dataset.range(_ENDLESS).scan(tf.constant(0, tf.int64), step)
    return blocks.take_while(lambda _, more: more).map(lambda texts, _: texts)


def _fetch(files, index):
  def fetch(index):
    files.fetch(files.paths[index])
    return index

  return tf.ensure_shape(tf.numpy_function(fetch, [index], tf.int64, stateful=False), [])


class NumberedSource(seqio.DataSource):
  """Another seqio source, reduced to its text and with its documents numbered as in TextSource.

  Documents of white space only are dropped.
  """

  def __init__(self, source, field="text"):
    """Wraps a source whose elements hold a string `field`."""
    super().__init__(splits=source.splits, caching_permitted=False)
    self._source = source
    self._field = field

  @property
  def supports_arbitrary_sharding(self):
    """Whether any number of hosts can share the source: as the wrapped one."""
    return self._source.supports_arbitrary_sharding

  def list_shards(self, split):
    """Returns the shards of the wrapped source."""
    return self._source.list_shards(split)

  def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None, *,
                  sequence_length=None, use_cached=False, num_epochs=1):
    """Returns {"text": string [], "index": int64 []} of one pass; see seqio.DataSource."""
    del sequence_length, use_cached, num_epochs
    dataset = self._source.get_dataset(split=split, shuffle=shuffle, seed=seed,
                                       shard_info=shard_info)
    texts = dataset.map(lambda x: x[self._field])
    return _numbered(texts.filter(lambda text: tf.strings.length(tf.strings.strip(text)) > 0))


def tfrecord_source(train_files, validation_files, field="text"):
  """Reads TFRecord files of tf.train.Example, as TFDS and Beam write them.

  Args:
    train_files: path or glob pattern, or a list of them.
    validation_files: the same for the validation split.
    field: the bytes feature that holds the text, in UTF-8.

  Returns:
    NumberedSource with the splits train and validation.

  Raises:
    DataError: there are no such files.
  """
  patterns = {"train": train_files, "validation": validation_files}
  for pattern in patterns.values():
    if not tf.io.gfile.glob(pattern):
      raise DataError(f"{pattern}: there are no such files.")
  features = {field: tf.io.FixedLenFeature([], tf.string)}
  return NumberedSource(seqio.TFExampleDataSource(patterns, features), field)


def _numbered(texts):
  return tf.data.Dataset.zip({"text": texts, "index": tf.data.Dataset.range(_ENDLESS)})

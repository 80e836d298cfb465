"""Batches from a tokenised cache: any example in constant time, in an order that is a formula.

The tokens of a split are one long stream, read as a circle. In each epoch it is cut into segments
from another starting point, and they come in another order, so the example at any position is
computed from (seed, epoch, index) alone. That is all that a checkpoint holds, any number of hosts
can share a stream, and a resumed run reads nothing twice. No TensorFlow.
"""

import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib

import numpy as np

from t5jax.data import features, position
from t5jax.data.mixing import Turns
from t5jax.data.objectives import row_generators
from t5jax.data.permutation import permute
from t5jax.data.text_files import DataError

INFO_NAME = "info.json"
HOW_TO_BUILD = ("Make it: python tools/cache_task.py, with the --gin_file and --gin. flags of the "
                "run, CACHE_DIR among them.")
_PREFETCH = 2  # Batches.


def files_of(task, split):
  """Lists what a split of a seqio task is read from, as (name, bytes or None).

  Folders do not count, so that a corpus can be moved; a file of the hub is told by its commit.
  """
  return [(name if "://" in name else os.path.basename(name),
           os.path.getsize(name) if os.path.exists(name) else None)
          for name in task.source.list_shards(split)]


def source_of(task, split):
  """Sums up `files_of`: how many files, and a hash of the list."""
  files = sorted(files_of(task, split))
  digest = hashlib.blake2b(json.dumps(files).encode(), digest_size=16).hexdigest()
  return {"num_files": len(files), "digest": digest}


class TokenStream:
  """The tokens of one split of a cached task.

  Attributes:
    info: what cache.write noted down: dict of "task", "split", "vocabulary" and so on.
    num_tokens: in all of its files together.
  """

  def __init__(self, folder):
    """Opens the files of a folder such as CACHE_DIR/task/train.

    Raises:
      DataError: they are not complete.
    """
    folder = pathlib.Path(folder)
    try:
      self.info = json.loads((folder / INFO_NAME).read_text())
    except (OSError, ValueError) as error:
      raise DataError(f"{folder}: holds no finished cache. {HOW_TO_BUILD}") from error
    self._dtype = np.dtype(self.info["dtype"])
    sizes = [part["num_tokens"] for part in self.info["parts"]]
    self._ends = np.cumsum(sizes)
    self.num_tokens = int(self._ends[-1])
    self._files = [open(folder / part["file"], "rb") for part in self.info["parts"]]
    for file, size in zip(self._files, sizes):
      if os.fstat(file.fileno()).st_size != size * self._dtype.itemsize:
        raise DataError(f"{file.name}: should hold {size:,} tokens, but has another size. Delete "
                        f"{folder} and cache the task again.")

  def read(self, start, length):
    """Returns int32 [length]: the tokens from `start` on, the first following on the last."""
    pieces = []
    while length:
      number = int(np.searchsorted(self._ends, start, side="right"))
      size = min(length, int(self._ends[number]) - start)
      offset = start - (int(self._ends[number - 1]) if number else 0)
      # Read, not mapped into memory: mapped pages would count as memory of this process.
      data = os.pread(self._files[number].fileno(), size * self._dtype.itemsize,
                      offset * self._dtype.itemsize)
      pieces.append(np.frombuffer(data, self._dtype))
      start, length = (start + size) % self.num_tokens, length - size
    return np.concatenate(pieces).astype(np.int32)


class CachedExamples:
  """The endless examples of one cached task, by index.

  Attributes:
    num_segments: examples per epoch. Up to one segment's worth of tokens is left out in each epoch,
      at another place each time.
  """

  def __init__(self, stream, objective, vocabulary, feature_lengths, seed, shuffle):
    """Plans the examples.

    Raises DataError where the cache was made with another vocabulary.

    Args:
      stream: TokenStream.
      objective: objectives.Objective.
      vocabulary: Vocabulary.
      feature_lengths: {"inputs": int, "targets": int}.
      seed: of order and masks.
      shuffle: False for the order and the cuts of the text itself.
    """
    if stream.info["vocabulary"] != vocabulary.sha256:
      raise DataError(f"the cache of task {stream.info['task']!r} was made with another vocabulary "
                      f"than the run's. {HOW_TO_BUILD}")
    self._stream, self._objective, self._vocabulary = stream, objective, vocabulary
    self._feature_lengths, self._seed, self._shuffle = feature_lengths, seed, shuffle
    length = objective.segment_length(feature_lengths, vocabulary.extra_ids)
    self._length = min(length, stream.num_tokens)
    self.num_segments = stream.num_tokens // self._length

  @property
  def fingerprint(self):
    """What must be the same for the same examples, as JSON."""
    return [self._stream.info["task"], self._stream.info["digest"], repr(self._objective)]

  def __call__(self, indices):
    """Makes examples.

    Args:
      indices: int64 [n], counted from 0 on through all epochs.

    Returns:
      {"inputs": int32 [n, inputs], "targets": int32 [n, targets], both padded with -1,
      "epoch": int64 [n]}.
    """
    epochs, positions = np.divmod(np.asarray(indices, np.int64), self.num_segments)
    starts = positions * self._length
    if self._shuffle:
      for epoch in np.unique(epochs):
        here = epochs == epoch
        generator, = row_generators(self._seed, [2**64 - 1 - int(epoch)])  # No example's number.
        key, shift = (int(x) for x in generator.integers(2**63, size=2))
        order = permute(positions[here], self.num_segments, key)
        starts[here] = (order * self._length + shift) % self._stream.num_tokens
    tokens = np.stack([self._stream.read(int(start), self._length) for start in starts])
    if tokens.max() >= self._vocabulary.num_pieces:
      raise DataError(f"the cache of task {self._stream.info['task']!r} is damaged: it holds the id "
                      f"{tokens.max()}, and the vocabulary ends at {self._vocabulary.num_pieces - 1}. Delete it. "
                      f"{HOW_TO_BUILD}")
    inputs, targets = self._objective.corrupt(tokens, row_generators(self._seed, indices),
                                              self._vocabulary, self._feature_lengths)
    return {"inputs": features.widen(inputs, self._feature_lengths["inputs"]),
            "targets": features.widen(targets, self._feature_lengths["targets"]), "epoch": epochs}


class CachedMixture:
  """The endless examples of several cached tasks that take turns; the interface of one."""

  def __init__(self, parts, rates, seed):
    """Mixes CachedExamples by rates; see mixing.Turns."""
    self._parts = parts
    self._turns = Turns(rates, seed)

  @property
  def num_segments(self):
    """Examples until one of the parts begins its second epoch."""
    return min(self._turns.first_position(part, examples.num_segments)
               for part, examples in enumerate(self._parts))

  @property
  def fingerprint(self):
    """What must be the same for the same examples, as JSON."""
    return [[part.fingerprint for part in self._parts], self._turns.counts.tolist()]

  def __call__(self, indices):
    """Makes examples; see CachedExamples. "epoch" is that of the part an example comes from."""
    numbers, inner = self._turns.locate(indices)
    found = [(rows, self._parts[number](inner[rows])) for number in np.unique(numbers)
             for rows in [np.flatnonzero(numbers == number)]]
    order = np.argsort(np.concatenate([rows for rows, _ in found]))
    return {name: np.concatenate([examples[name] for _, examples in found])[order]
            for name in ("inputs", "targets", "epoch")}


class CachedIterator:
  """Batches of NumPy arrays from a cache, made by a thread ahead of time.

  Attributes:
    epoch: the pass over the data that the last batch belongs to, by its median; None before it.
  """

  def __init__(self, examples, batch_size, fingerprint, rows=slice(None), num_examples=None):
    """Starts at example 0.

    Args:
      examples: CachedExamples or CachedMixture.
      batch_size: over all hosts.
      fingerprint: dict of what must be the same for a saved position to make sense.
      rows: those of each batch that are this host's.
      num_examples: end there, with a smaller batch if need be; None for never.
    """
    self._examples, self._batch_size, self._rows = examples, batch_size, rows
    self._fingerprint, self._end = fingerprint, num_examples
    self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="batches")
    self._seek(0)
    self.epoch = None

  def _seek(self, example):
    """Goes on with an example of the endless stream, given by its number."""
    self._position, self._pending = example, collections.deque()

  def __iter__(self):
    return self

  def __next__(self):
    while len(self._pending) < _PREFETCH:
      ahead = self._position + len(self._pending) * self._batch_size
      self._pending.append(self._pool.submit(self._make, ahead))
    batch = self._pending.popleft().result()
    if batch is None:
      raise StopIteration
    self._position += self._batch_size
    self.epoch = int(np.median(batch["epoch"]))
    return batch

  def _make(self, start):
    end = start + self._batch_size
    if self._end is not None:
      end = min(end, self._end)
    indices = np.arange(start, end)[self._rows]
    return features.to_model_batch(self._examples(indices)) if len(indices) else None

  def save(self, path):
    """Writes the position behind the last batch to `path`.json: a few numbers."""
    position.write(path, self._fingerprint, examples=self._position, epoch=self.epoch)

  def restore(self, path):
    """Continues with the batch that came next when `save(path)` was called, at once.

    The number of hosts may have changed, and the batch size as well: the stream of examples is the
    same.

    Raises:
      DataError: no position was saved there, or it is of another pipeline: the message says what
        differs.
    """
    state = position.read(path, self._fingerprint)
    self._seek(state["examples"])
    self.epoch = state["epoch"]

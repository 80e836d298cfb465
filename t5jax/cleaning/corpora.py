"""What is to be cleaned: files in a fixed order, read in batches from any position."""

import collections
import dataclasses
import functools
import os
import typing

from t5jax.data.streams import compression_of
from t5jax.data.text_files import TextFiles, kind_of


class Batch(typing.NamedTuple):
  """Documents that were read together, and where the next ones begin.

  Attributes:
    documents: list of (text, source, id).
    file: number of the file from which to read on.
    next_offset: in it.
    num_bytes: of the files on disk that this batch used up, roughly.
    counts: Counter of what the reader met: "blank documents", "skipped records" and
      "replaced sequences".
  """

  documents: list
  file: int
  next_offset: int
  num_bytes: int
  counts: collections.Counter


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Files to clean.

  Attributes:
    files: TextFiles.

  The source of a document is the name of its file; where each document is a file of its own, as in
  Danish Gigaword, the name of its folder.
  """

  files: TextFiles

  def num_bytes(self):
    """Returns the size of the files on disk."""
    return sum(os.path.getsize(path) for path in self.files.paths)

  def fingerprint(self):
    """Returns what must be the same for the same documents, as JSON."""
    settings = {field.name: getattr(self.files, field.name)
                for field in dataclasses.fields(self.files)
                if field.name not in ("paths", "fetch", "transform")}
    transform = getattr(self.files.transform, "__name__", None)
    return {"files": {path: os.path.getsize(path) for path in self.files.paths},
            "reading": {**settings, "transform": transform}}

  def batches(self, file=0, offset=0, max_bytes=1 << 18, end=None):
    """Yields Batch after Batch, from a position on.

    Args:
      file: number of a file.
      offset: in it, 0 or the next_offset of a batch.
      max_bytes: small files are read together up to this size.
      end: number of the file before which to stop, None for all.
    """
    documents, num_bytes, size, counts = [], 0, 0, collections.Counter()
    end = len(self.files.paths) if end is None else end
    while file < end:
      before = self._bytes_used(file, offset)
      block = self.files.read(file, offset)
      documents += [(text, self._source(file), self._id(file, offset, i))
                    for i, text in enumerate(block.texts)]
      size += sum(map(len, block.texts))
      counts.update({"blank documents": block.num_blank, "skipped records": block.num_skipped,
                     "replaced sequences": block.num_replaced})
      if block.next_offset == offset:
        num_bytes += os.path.getsize(self.files.paths[file]) - before
        file, offset = file + 1, 0
      else:
        offset = block.next_offset
        num_bytes += self._bytes_used(file, offset) - before
      if size >= max_bytes:
        yield Batch(documents, file, offset, num_bytes, counts)
        documents, num_bytes, size, counts = [], 0, 0, collections.Counter()
    yield Batch(documents, file, offset, num_bytes, counts)

  def _bytes_used(self, file, offset):
    """How much of a file is read at an offset, as far as that can be known before its end."""
    return offset if offset and _offsets_are_bytes(self.files.paths[file]) else 0

  def _source(self, file):
    path = self.files.paths[file]
    return os.path.basename(os.path.dirname(path) if self.files.documents == "file" else path)

  @functools.cached_property
  def _names(self):
    """Of the files, each its own: with the folders that tell them apart, if need be."""
    names = [os.path.basename(path) for path in self.files.paths]
    if len(set(names)) == len(names):
      return names
    root = os.path.commonpath([os.path.dirname(path) for path in self.files.paths])
    return [os.path.relpath(path, root) for path in self.files.paths]

  def _id(self, file, offset, position):
    name = self._names[file]
    return name if self.files.documents == "file" else f"{name}:{offset}:{position}"


@functools.lru_cache(1)
def _offsets_are_bytes(path):
  """Whether the offsets of a file's blocks count its bytes on disk."""
  return compression_of(path) is None and kind_of(path) != "parquet"

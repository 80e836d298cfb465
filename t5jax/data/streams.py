"""Bytes of files, compressed or not, in blocks that end where a record ends."""

import contextlib
import io
import math
import os
import shutil
import tempfile
import threading

BLOCK_BYTES = 1 << 18
_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
_PLAIN_SUFFIXES = (".txt", ".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet")


class DataError(ValueError):
  """Input data cannot be used; the message, one line, names the file, line or step at fault."""


def uncompressed_name(path):
  """Returns a file's name without .gz or .zst."""
  stem, suffix = os.path.splitext(os.fspath(path))
  return stem if suffix.lower() in _SUFFIXES else os.fspath(path)


def compression_of(path):
  """Returns "gzip", "zstd" or None, by the first bytes of a file.

  Raises:
    DataError: the file is empty, or its name says something else.
  """
  with open(path, "rb") as stream:
    head = stream.read(4)
  if not head:
    raise DataError(f"{path}: is empty.")
  found = next((name for name, magic in _MAGIC.items() if head.startswith(magic)), None)
  suffix = os.path.splitext(path)[1].lower()
  claimed = _SUFFIXES.get(suffix)
  if claimed and found != claimed:
    raise DataError(f"{path}: is not {claimed} data in spite of its name; it begins with "
                    f"{head!r}. Was a page of an error saved in its place?")
  if found and suffix in _PLAIN_SUFFIXES:
    right = next(s for s, name in _SUFFIXES.items() if name == found)
    raise DataError(f"{path}: holds {found} data; rename it to {path}{right}.")
  return found


def open_stream(path):
  """Opens a file to read its bytes, decompressed, as an io.BufferedReader."""
  compression = compression_of(path)
  if compression is None:
    return open(path, "rb")
  return io.BufferedReader(_decompressing(path, compression), BLOCK_BYTES)


def _decompressing(source, compression):
  import pyarrow

  return pyarrow.input_stream(source, compression=compression)


def head(path, size):
  """Returns the first `size` bytes of a file, decompressed; fewer where it ends or is damaged."""
  try:
    with open_stream(path) as stream:
      return stream.read(size)
  except OSError:
    return _before_damage(path, 0)[:size]


def open_seekable(path):
  """Opens a file for random access; a compressed one is unpacked to a temporary file."""
  if compression_of(path) is None:
    return open(path, "rb")
  unpacked = tempfile.TemporaryFile()
  with open_stream(path) as stream:
    shutil.copyfileobj(stream, unpacked, BLOCK_BYTES)
  unpacked.seek(0)
  return unpacked


def skip_bytes(stream, count):
  """Reads on to an offset, where there is no other way."""
  while count > 0 and (data := stream.read(min(count, BLOCK_BYTES))):
    count -= len(data)


class BlockReader:
  """Blocks of whole records by (path, offset).

  Streams of compressed files are kept, each at the offset where its last block ended: reading on
  needs no second decompression of what went before. That is only a matter of speed.
  """

  _MAX_PARKED = 64

  def __init__(self):
    self._parked = {}
    self._lock = threading.Lock()

  def read(self, path, offset, is_complete, salvage=False):
    """Returns the bytes of whole records from `offset` on; none at the end of the file.

    Args:
      path: of the file.
      offset: in bytes of the uncompressed file, where a record begins.
      is_complete: function of the list of bytes read so far, the last of them a whole line:
        whether a record ends with it. None reads to the end of the file.
      salvage: of a damaged compressed file, return the records before the damage, if there are any.

    Raises:
      DataError, OSError: the file is not what its name says, or ends too early.
    """
    try:
      return self._read(path, offset, is_complete)
    except OSError:
      data = _records_before_damage(path, offset, is_complete) if salvage else b""
      if not data:
        raise
      return data

  def _read(self, path, offset, is_complete):
    with self._lock:
      stream = self._parked.pop((path, offset), None)
    if stream is None:
      stream = open_stream(path)
      stream.seek(offset) if stream.seekable() else skip_bytes(stream, offset)
    parts = [stream.read(-1 if is_complete is None else BLOCK_BYTES)]
    if is_complete is not None and parts[0]:
      parts += [stream.readline()] if not parts[0].endswith(b"\n") else []
      while parts[-1] and not is_complete(parts):
        parts.append(stream.readline())
    data = b"".join(parts)
    if not data or stream.seekable():
      stream.close()
    else:
      self._park(path, offset + len(data), stream)
    return data

  def _park(self, path, offset, stream):
    with self._lock:
      self._parked[path, offset] = stream
      while len(self._parked) > self._MAX_PARKED:
        self._parked.pop(next(iter(self._parked))).close()


def _records_before_damage(path, offset, is_complete):
  """The bytes of the whole records from an offset on that a damaged file still gives."""
  if is_complete is None:
    return b""
  data = _before_damage(path, offset)
  lines = io.BytesIO(data[:data.rfind(b"\n") + 1]).readlines()
  while lines and not is_complete(lines):
    lines.pop()
  return b"".join(lines)


def _before_damage(path, offset):
  """All bytes from an offset on that a damaged compressed file still gives."""
  compression, data = compression_of(path), b""
  if compression is None:
    return data
  # A failing call of the decompressor gives nothing back: the second time it gets the bytes around
  # the damage one by one.
  singly_from = math.inf
  for size in (1 << 14, 1):
    with _Pieces(path, singly_from) as pieces, contextlib.suppress(OSError):
      stream = _decompressing(pieces, compression)
      skip_bytes(stream, offset + len(data))
      while piece := stream.read(size):
        data += piece
    singly_from = pieces.position - _Pieces.BYTES
  return data


class _Pieces(io.RawIOBase):
  """A file read in pieces, from a position on byte by byte."""

  BYTES = 1 << 14

  def __init__(self, path, singly_from):
    self._file, self._singly_from, self.position = open(path, "rb"), singly_from, 0

  def readable(self):
    return True

  def read(self, size):
    data = self._file.read(min(size, self.BYTES if self.position < self._singly_from else 1))
    self.position += len(data)
    return data

  def close(self):
    self._file.close()
    super().close()


def line_of_damage(path, offset):
  """Returns the number, from 1, of the line in which a compressed file's damage behind an offset lies."""
  return lines_before(path, offset) + _before_damage(path, offset).count(b"\n") + 1


def lines_before(path, offset):
  """Counts the line feeds in the first `offset` bytes of a file."""
  count = 0
  with open_stream(path) as stream:
    while offset > 0 and (data := stream.read(min(offset, BLOCK_BYTES))):
      count += data.count(b"\n")
      offset -= len(data)
  return count

"""Documents from local text files, by pure functions of (file, offset), without TensorFlow.

A file is read in blocks: `TextFiles.read(index, offset)` returns the whole documents that start at
a byte offset, and the offset at which the next block starts. A position in the corpus is therefore
two numbers, which tf.data saves and restores exactly, and any block can be read again.
"""

import dataclasses
import glob
import gzip
import json
import logging
import os
import pathlib
import re
import threading
import typing
import zlib

from t5jax.settings import SettingError, check_settings, nearest

BLOCK_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_BLANK = " \t\r\f\v"  # What makes a line blank, as bytes and as text alike.
_CHECKED_FILES = 64

logger = logging.getLogger(__name__)


class DataError(ValueError):
  """Input data cannot be used; the message, one line, names the file, line or step at fault."""


class Block(typing.NamedTuple):
  """Documents read at one offset of one file.

  Attributes:
    texts: list of str, none of them only whitespace.
    next_offset: where the next block starts, in bytes of the uncompressed file; equal to the
      offset of this one at the end of the file.
    num_blank: whitespace-only documents that were dropped.
    num_replaced: undecodable sequences that became U+FFFD.
  """

  texts: list
  next_offset: int
  num_blank: int
  num_replaced: int


def find_files(patterns, setting="files"):
  """Lists the files that paths or glob patterns stand for.

  Args:
    patterns: a path or pattern, or a list of them; `~` and `**` are expanded.
    setting: name of the setting, for errors.

  Returns:
    A sorted tuple of paths without duplicates.

  Raises:
    SettingError: a pattern matches no file, or a file is of no known kind.
  """
  patterns = [patterns] if isinstance(patterns, (str, os.PathLike)) else list(patterns)
  if not patterns:
    raise SettingError(setting, patterns, "at least one file")
  found = set()
  for pattern in patterns:
    path = os.path.expanduser(os.fspath(pattern))
    matches = [path] if os.path.isfile(path) else glob.glob(path, recursive=True)
    matches = [match for match in matches if os.path.isfile(match)]
    if not matches:
      raise SettingError(setting, os.fspath(pattern), _where_to_look(path))
    found.update(matches)
  for path in sorted(found):
    if kind_of(path) is None:
      raise SettingError(setting, path, "a .txt or .jsonl file, or one of these with .gz after it")
  return tuple(sorted(found))


def kind_of(path):
  """Returns "text" or "json" by a file's name, None where the name says neither."""
  name = os.fspath(path).removesuffix(".gz")
  if name.endswith(".txt"):
    return "text"
  return "json" if name.endswith((".jsonl", ".json")) else None


def _where_to_look(path):
  if os.path.isdir(path):
    return f"files; this is a folder: use {os.path.join(path, '*.txt')}"
  folder = pathlib.Path(path).parent
  while not folder.is_dir():
    folder = folder.parent
  known = [str(folder / name) for name in os.listdir(folder)]
  hint = nearest(str(path), known).replace(" Did", "; did").rstrip("?")
  return f"files that exist; {folder.resolve()} has none of this name{hint}"


@dataclasses.dataclass(frozen=True)
class TextFiles:
  """Text files of one format, read as documents.

  Records end at a line feed and nowhere else; the carriage return of CRLF and a byte order mark are
  dropped, and so are documents of whitespace only, which are counted. In JSON lines (.jsonl, .json)
  only `field` is looked at.

  Attributes:
    paths: file names; .gz is decompressed.
    documents: of .txt files, "line" for a document a line, or "blank_line" for blocks of lines
      between blank ones, kept with their inner line feeds.
    field: the field of a JSON row that holds the text.
    encoding: of the bytes; any that keeps the line feed a single byte.
    errors: "strict" refuses undecodable bytes, "replace" turns them into U+FFFD and counts them.
    fetch: maps one of `paths` to a file on this machine, downloading it if need be.
  """

  paths: tuple
  documents: typing.Literal["line", "blank_line"] = "line"
  field: str = "text"
  encoding: str = "utf-8"
  errors: typing.Literal["strict", "replace"] = "strict"
  fetch: typing.Any = None

  def __post_init__(self):
    check_settings(self)
    try:
      one_byte = "\n".encode(self.encoding) == b"\n"
    except LookupError:
      one_byte = False
    if not one_byte:
      raise SettingError("TextFiles.encoding", self.encoding,
                         "utf-8, latin-1, cp1252 or another encoding in which a line feed is one "
                         "byte (convert UTF-16 to UTF-8 first)")
    object.__setattr__(self, "_tally", _Tally())

  def read(self, index, offset):
    """Reads the documents that start at a byte offset of a file.

    Args:
      index: position in `paths`.
      offset: 0, or the `next_offset` of an earlier block.

    Returns:
      A Block of about 64 KiB, or of one document where that is longer.

    Raises:
      DataError: names the file, and where it can, the line and the byte.
    """
    path = self._local(index)
    try:
      data = _read_block(path, offset, self.documents == "blank_line" and kind_of(path) == "text")
    except (OSError, EOFError, zlib.error) as error:
      raise DataError(f"{path}: cannot be read: {_one_line(error)}") from error
    text, num_replaced = self._decode(path, offset, data)
    texts, num_blank = self._split(path, offset, text)
    block = Block(texts, offset + len(data), num_blank, num_replaced)
    self._tally.add(path, offset, block)
    return block

  def iterate(self):
    """Yields the text of every document, file by file."""
    for index in range(len(self.paths)):
      offset, block = 0, None
      while block is None or block.next_offset > offset:
        offset = block.next_offset if block else 0
        block = self.read(index, offset)
        yield from block.texts

  def counts(self):
    """Returns {"documents", "blank", "replaced", "bytes"} of what was read so far, once each."""
    return self._tally.total()

  def check(self):
    """Refuses files that are missing, empty, misnamed or unreadable by their first records.

    Fast: of many files only the first 64 are read beyond their first two bytes; none that would
    have to be fetched.

    Raises:
      DataError: names the file.
    """
    if self.fetch is not None:
      return
    for index, path in enumerate(self.paths):
      _check_compression(path)
      if index < _CHECKED_FILES and not self._has_document(index):
        raise DataError(f"{path}: holds no document, only whitespace.")

  def _local(self, index):
    path = self.paths[index]
    return self.fetch(path) if self.fetch is not None else path

  def _has_document(self, index):
    offset, block = -1, Block([], 0, 0, 0)
    while block.next_offset > offset:
      offset = block.next_offset
      block = self.read(index, offset)
      if block.texts:
        return True
    return False

  def _decode(self, path, offset, data):
    try:
      text = data.decode(self.encoding)
      num_replaced = 0
    except UnicodeDecodeError as error:
      if self.errors == "strict":
        raise DataError(self._wrong_bytes(path, offset, data, error)) from error
      text = data.decode(self.encoding, "replace")
      num_replaced = text.count("\ufffd") - data.decode(self.encoding, "ignore").count("\ufffd")
    return text.removeprefix("\ufeff") if offset == 0 else text, num_replaced

  def _wrong_bytes(self, path, offset, data, error):
    line_start = data.rfind(b"\n", 0, error.start) + 1
    line = _line_number(path, offset, data, error.start)
    return (f"{path}, line {line}, byte {error.start - line_start + 1} of the line (byte "
            f"{offset + error.start} of the file): 0x{data[error.start]:02x} is not "
            f"{self.encoding}. Convert the file to UTF-8, or set encoding (such as 'latin-1') or "
            "errors='replace'.")

  def _split(self, path, offset, text):
    lines = text.split("\n")
    if lines[-1] == "":
      lines.pop()
    if kind_of(path) == "json":
      texts = [self._parse_row(path, offset, i, line)
               for i, line in enumerate(lines) if line.strip()]
      num_empty_rows = len(lines) - len(texts)
    elif self.documents == "blank_line":
      texts, num_empty_rows = _paragraphs(lines), 0
    else:
      texts, num_empty_rows = [line.removesuffix("\r") for line in lines], 0
    kept = [text for text in texts if text.strip()]
    return kept, len(texts) - len(kept) + num_empty_rows

  def _parse_row(self, path, offset, position, line):
    try:
      row = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise self._wrong_row(path, offset, position, f"not JSON: {_one_line(error)}") from error
    if not isinstance(row, dict):
      raise self._wrong_row(path, offset, position, "not a JSON object {...}")
    if self.field not in row:
      have = ", ".join(map(repr, list(row)[:8]))
      raise self._wrong_row(path, offset, position, f"no field {self.field!r}; the row has {have}."
                            + nearest(self.field, row))
    value = row[self.field]
    if not isinstance(value, str):
      raise self._wrong_row(path, offset, position, f"field {self.field!r} is "
                            f"{json.dumps(value)[:40]}, not a string")
    if re.search("[\ud800-\udfff]", value):
      if self.errors == "strict":
        raise self._wrong_row(path, offset, position, f"field {self.field!r} holds half a "
                              "surrogate pair, which is no character; set errors='replace'")
      value = re.sub("[\ud800-\udfff]", "\ufffd", value)
    return value

  def _wrong_row(self, path, offset, position, problem):
    return DataError(f"{path}, line {_lines_before(path, offset) + position + 1}: {problem}")


class _Tally:
  """Counts of documents read, each block once however often it is read."""

  def __init__(self):
    self._lock = threading.Lock()
    self._reached = {}
    self._by_file = {}

  def add(self, path, offset, block):
    with self._lock:
      if offset < self._reached.get(path, 0):
        return
      documents, blank, replaced, _ = self._by_file.get(path, (0, 0, 0, 0))
      counts = (documents + len(block.texts), blank + block.num_blank,
                replaced + block.num_replaced, block.next_offset)
      self._by_file[path] = counts
      self._reached[path] = block.next_offset if block.next_offset > offset else offset + 1
      if block.next_offset == offset and (counts[1] or counts[2]):
        logger.warning("%s: %d documents read, %d blank ones dropped, %d undecodable sequences "
                       "replaced by U+FFFD.", path, *counts[:3])

  def total(self):
    with self._lock:
      sums = [sum(column) for column in zip(*self._by_file.values())] or [0] * 4
    return dict(zip(("documents", "blank", "replaced", "bytes"), sums))


def _paragraphs(lines):
  """Joins runs of lines that are not blank."""
  found, current = [], []
  for line in [*lines, ""]:
    if line.strip(_BLANK):
      current.append(line.removesuffix("\r"))
    elif current:
      found.append("\n".join(current))
      current = []
  return found


def _check_compression(path):
  if os.path.getsize(path) == 0:
    raise DataError(f"{path}: is empty.")
  with open(path, "rb") as stream:
    compressed = stream.read(2) == _GZIP_MAGIC
  if compressed and not path.endswith(".gz"):
    raise DataError(f"{path}: holds gzip data; rename it to {path}.gz.")
  if path.endswith(".gz") and not compressed:
    raise DataError(f"{path}: is not gzip data in spite of its name; remove .gz or compress it.")


# Streams of gzip files, each at the offset where its last block ended: reading on needs no second
# decompression of what went before. Only a matter of speed.
_parked = {}
_parked_lock = threading.Lock()
_MAX_PARKED = 64


def _read_block(path, offset, until_blank_line):
  """Returns the bytes of whole records from `offset` on; none at the end of the file."""
  with _parked_lock:
    stream = _parked.pop((path, offset), None)
  if stream is None:
    if offset == 0:
      _check_compression(path)
    stream = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
    stream.seek(offset)
  parts = [stream.read(BLOCK_BYTES)]
  if parts[0] and not parts[0].endswith(b"\n"):
    parts.append(stream.readline())
  while until_blank_line and parts[-1].strip(_BLANK.encode() + b"\n"):
    parts.append(stream.readline())
  data = b"".join(parts)
  if not data or not path.endswith(".gz"):
    stream.close()
    return data
  with _parked_lock:
    _parked[path, offset + len(data)] = stream
    while len(_parked) > _MAX_PARKED:
      _parked.pop(next(iter(_parked))).close()
  return data


def _lines_before(path, offset):
  """Counts the line feeds in the first `offset` bytes of a file."""
  count = 0
  with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as stream:
    while offset > 0 and (data := stream.read(min(offset, 1 << 20))):
      count += data.count(b"\n")
      offset -= len(data)
  return count


def _line_number(path, offset, data, position):
  return _lines_before(path, offset) + data.count(b"\n", 0, position) + 1


def _one_line(error):
  return " ".join(str(error).split())

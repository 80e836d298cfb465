"""Documents from local files, by pure functions of (file, offset), without TensorFlow.

A file is read in blocks: `TextFiles.read(index, offset)` returns the whole documents that start at
an offset, and the offset at which the next block starts. A position in the corpus is therefore
two numbers, which tf.data saves and restores exactly, and any block can be read again.
"""

import codecs
import dataclasses
import functools
import glob
import logging
import os
import pathlib
import threading
import typing

from t5jax.data import formats, streams
from t5jax.data.formats import Problem, kind_of
from t5jax.data.streams import DataError
from t5jax.settings import SettingError, check_settings, nearest

__all__ = ["Block", "DataError", "TextFiles", "find_files", "kind_of"]

_CHECKED_FILES = 64

logger = logging.getLogger(__name__)


class Block(typing.NamedTuple):
  """Documents read at one offset of one file.

  Attributes:
    texts: list of str, none of them only whitespace.
    next_offset: where the next block starts, in bytes of the uncompressed file, or in rows of a
      parquet file; equal to the offset of this one at the end of the file.
    num_blank: whitespace-only documents that were dropped.
    num_replaced: undecodable sequences that became U+FFFD.
    num_skipped: records, or ends of files, that could not be used.
  """

  texts: list
  next_offset: int
  num_blank: int = 0
  num_replaced: int = 0
  num_skipped: int = 0


def find_files(patterns, setting="files"):
  """Lists the files that paths or glob patterns stand for.

  Args:
    patterns: a path or pattern, or a list of them; `~` and `**` are expanded.
    setting: name of the setting, for errors.

  Returns:
    A sorted tuple of paths without duplicates.

  Raises:
    SettingError: a pattern matches no file.
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
  return tuple(sorted(found))


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
  """Text files, read as documents: text, JSON lines, CSV, TSV or parquet, also .gz or .zst.

  What a file holds is known by its name or, where that says nothing, by its content. Text records
  end at a line feed and nowhere else; the carriage return of CRLF and a byte order mark are
  dropped, and so are documents of whitespace only, which are counted. Of rows only `field` is
  looked at.

  Attributes:
    paths: file names.
    documents: of text, "line" for a document a line, "blank_line" for blocks of lines between
      blank ones, kept with their inner line feeds, "file" for the whole file as one document.
    field: the field of a row, or column, that holds the text.
    encoding: of the bytes; any that keeps the line feed a single byte.
    errors: "strict" refuses undecodable bytes, "replace" turns them into U+FFFD and counts them.
    on_error: "refuse" raises on a record that cannot be used; "skip" leaves it out and counts it,
      or the rest of the file, where that cannot be read.
    fetch: maps one of `paths` to a file on this machine, downloading it if need be.
    transform: maps a document to what is kept of it.
  """

  paths: tuple
  documents: typing.Literal["line", "blank_line", "file"] = "line"
  field: str = "text"
  encoding: str = "utf-8"
  errors: typing.Literal["strict", "replace"] = "strict"
  on_error: typing.Literal["refuse", "skip"] = "refuse"
  fetch: typing.Any = None
  transform: typing.Any = None

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
    object.__setattr__(self, "_kind_of", functools.cache(kind_of))
    object.__setattr__(self, "_csv_header", functools.cache(formats.csv_header))

  def __reduce__(self):
    values = tuple(getattr(self, field.name) for field in dataclasses.fields(self))
    return type(self), values  # Without counts and caches.

  def read(self, index, offset):
    """Reads the documents that start at an offset of a file.

    Args:
      index: position in `paths`.
      offset: 0, or the `next_offset` of an earlier block.

    Returns:
      A Block of about 256 KiB, or of one document where that is longer; of 256 rows of parquet.

    Raises:
      DataError: names the file, and where it can, the line and the byte.
    """
    path = self._local(index)
    try:
      block = self._read(path, offset)
    except (DataError, OSError, EOFError, ValueError) as error:
      if self.on_error == "refuse":
        raise self._at(path, offset, error) from error
      _warn_once(f"{path}: the rest of the file is skipped: {_one_line(error)}")
      block = Block([], offset, num_skipped=1)
    self._tally.add(path, offset, block)
    return block

  def _at(self, path, offset, error):
    """A DataError that names the file and, of a damaged compressed one, the line."""
    message = _one_line(error)
    if isinstance(error, DataError):
      return error if str(path) in message else DataError(f"{path}: {message}")
    return DataError(f"{path}{self._damaged_line(path, offset, error)}: cannot be read: {message}")

  def _damaged_line(self, path, offset, error):
    try:
      # Offsets of parquet are rows, and what is missing at its end is its table of contents.
      if isinstance(error, OSError) and streams.compression_of(path) and self._kind_of(path) != "parquet":
        return f", line {streams.line_of_damage(path, offset)}"
    except OSError:  # It cannot even be opened.
      pass
    return ""

  def _read(self, path, offset):
    kind = self._kind_of(path)
    if kind == "parquet":
      values = _parquet.read(path, offset, self.field)
      records = [(row, Problem("is null") if value is None else value)
                 for row, value in enumerate(values)]
      return self._block(path, offset, records, offset + len(values), "row")
    data = _blocks.read(path, offset, formats.record_end(kind, self.documents),
                        salvage=self.on_error == "skip")
    text, num_replaced = self._decode(path, offset, data)
    if kind == "json":
      records = formats.json_documents(text, self.field, self.errors == "replace")
    elif kind in ("csv", "tsv"):
      header = self._csv_header(path, kind, self.encoding, self._undecodable)
      records = formats.csv_documents(text, kind, header, self.field, has_header=offset == 0)
    else:
      records = formats.text_documents(text, self.documents) if text else []
    if self._undecodable == "surrogateescape":
      records = [(number, self._refuse_undecodable(record)) for number, record in records]
    return self._block(path, offset, records, offset + len(data), "line")._replace(
        num_replaced=num_replaced)

  def _block(self, path, offset, records, next_offset, unit):
    """Makes a block of (number, document or Problem)."""
    texts, num_blank, num_skipped = [], 0, 0
    for number, text in records:
      if isinstance(text, str) and "\0" in text:
        text = Problem("holds a NUL, as no text does: is this another kind of file, or UTF-16?")
      if isinstance(text, Problem):
        if self.on_error == "refuse":
          raise self._wrong_record(path, offset, number, unit, text)
        num_skipped += 1
        continue
      text = self.transform(text) if self.transform else text
      if text and not text.isspace():
        texts.append(text)
      else:
        num_blank += 1
    return Block(texts, next_offset, num_blank, 0, num_skipped)

  def _wrong_record(self, path, offset, number, unit, problem):
    number += offset if unit == "row" else streams.lines_before(path, offset)
    return DataError(f"{path}, {unit} {number + 1}: {problem.reason}")

  def iterate(self):
    """Yields the text of every document, file by file."""
    for index in range(len(self.paths)):
      offset, block = 0, None
      while block is None or block.next_offset > offset:
        offset = block.next_offset if block else 0
        block = self.read(index, offset)
        yield from block.texts

  def counts(self):
    """Returns what was read so far, once each, as a dict of numbers.

    They are "documents", and "blank", "replaced", "skipped" as in Block, and "bytes", of the
    uncompressed files (rows of parquet).
    """
    return self._tally.total()

  def check(self):
    """Refuses files that are missing, empty, misnamed or unreadable by their first records.

    Fast: of many files only the first 64 are read beyond their first bytes; none that would have
    to be fetched. With on_error="skip" only what leaves no document at all is refused.

    Raises:
      DataError: names the file.
    """
    if self.fetch is not None:
      return
    for index, path in enumerate(self.paths):
      if self.on_error == "refuse":
        streams.compression_of(path)
      if index < _CHECKED_FILES and not self._has_document(index):
        if self.on_error == "refuse":
          raise DataError(f"{path}: holds no document, only whitespace.")
      elif self.on_error == "skip":
        return
    if self.on_error == "skip":
      raise DataError(f"{self.paths[0]}: holds nothing that can be used, nor do the other files.")

  def _local(self, index):
    path = self.paths[index]
    return self.fetch(path) if self.fetch is not None else path

  def _has_document(self, index):
    offset, block = -1, Block([], 0)
    while block.next_offset > offset:
      offset = block.next_offset
      block = self.read(index, offset)
      if block.texts:
        return True
    return False

  @property
  def _undecodable(self):
    """How bytes.decode treats undecodable bytes; where they are skipped, it marks them."""
    if self.errors == "replace":
      return "replace"
    return "surrogateescape" if self.on_error == "skip" else "strict"

  def _decode(self, path, offset, data):
    """Returns (text, number of undecodable sequences replaced)."""
    num_replaced = 0
    try:
      text = data.decode(self.encoding)
    except UnicodeDecodeError as error:
      if self._undecodable == "strict":
        raise DataError(self._wrong_bytes(path, offset, data, error)) from error
      text = data.decode(self.encoding, self._undecodable)
      if self.errors == "replace":
        num_replaced = text.count("\ufffd") - data.decode(self.encoding, "ignore").count("\ufffd")
    return text.removeprefix("\ufeff") if offset == 0 else text, num_replaced

  def _refuse_undecodable(self, record):
    if isinstance(record, str) and formats.has_surrogates(record):
      return Problem(f"is not {self.encoding}")
    return record

  def _wrong_bytes(self, path, offset, data, error):
    line_start = data.rfind(b"\n", 0, error.start) + 1
    line = streams.lines_before(path, offset) + data.count(b"\n", 0, error.start) + 1
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    remedy = "from UTF-16" if is_utf16 else "or set encoding (such as 'latin-1') or errors='replace'"
    return (f"{path}, line {line}, byte {error.start - line_start + 1} of the line (byte "
            f"{offset + error.start} of the file): 0x{data[error.start]:02x} is not "
            f"{self.encoding}. Convert the file to UTF-8, {remedy}.")


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
      documents, blank, replaced, skipped, _ = self._by_file.get(path, (0,) * 5)
      counts = (documents + len(block.texts), blank + block.num_blank,
                replaced + block.num_replaced, skipped + block.num_skipped, block.next_offset)
      self._by_file[path] = counts
      self._reached[path] = block.next_offset if block.next_offset > offset else offset + 1
      if block.next_offset == offset and any(counts[1:4]):
        _warn_once("{}: documents read: {}, blank ones dropped: {}, undecodable sequences replaced by "
                   "U+FFFD: {}, records skipped: {}.".format(path, *counts[:4]))

  def total(self):
    with self._lock:
      sums = [sum(column) for column in zip(*self._by_file.values())] or [0] * 5
    return dict(zip(("documents", "blank", "replaced", "skipped", "bytes"), sums))


@functools.lru_cache(10_000)
def _warn_once(message):
  """Says it the first time only: a run reads its files again, in each epoch for one."""
  logger.warning(message)


def _one_line(error):
  return " ".join(str(error).split())


_blocks = streams.BlockReader()
_parquet = formats.ParquetReader()

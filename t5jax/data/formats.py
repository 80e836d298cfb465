"""What a file holds, and how its blocks become documents. Pure functions, without TensorFlow."""

import codecs
import csv
import io
import json
import os
import re
import threading
import typing

from t5jax.data import streams
from t5jax.data.streams import DataError
from t5jax.settings import nearest

_KINDS = {".txt": "text", ".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv",
          ".tsv": "tsv", ".parquet": "parquet"}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_PARQUET_MAGIC = b"PAR1"
_BLANK = " \t\r\f\v"  # What makes a line blank, as bytes and as text alike.
_MAX_CSV_RECORD = 1 << 26
_SURROGATES = re.compile("[\ud800-\udfff]")

csv.field_size_limit(_MAX_CSV_RECORD)


class Problem(typing.NamedTuple):
  """In place of a document: why a record cannot be used."""

  reason: str


def kind_of(path):
  """Says what a file holds: "text", "json" (lines), "csv", "tsv" or "parquet".

  Its name decides, without .gz or .zst; where that says nothing, its content does.

  Raises:
    DataError: name and content contradict each other, or the file is empty.
  """
  kind = _KINDS.get(os.path.splitext(streams.uncompressed_name(path))[1].lower())
  head = streams.head(path, 1 << 14)
  is_parquet = head.startswith(_PARQUET_MAGIC)
  # No text goes on like that: it is how the first header begins.
  if kind not in ("parquet", None) and head.startswith(_PARQUET_MAGIC + b"\x15"):
    raise DataError(f"{path}: holds parquet data; rename it to .parquet.")
  if kind == "parquet" and not is_parquet:
    raise DataError(f"{path}: is not parquet data in spite of its name; it begins with "
                    f"{head[:8]!r}.")
  if kind is not None or is_parquet:
    return kind or "parquet"
  return "json" if _begins_with_json(head, path) else "text"


def _begins_with_json(head, path):
  """Whether the first line is a JSON object, however long."""
  if not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
    return False
  with streams.open_stream(path) as stream:
    line = next((line for line in stream if line.removeprefix(codecs.BOM_UTF8).strip()), b"")
  try:
    # What bytes mean does not matter here; latin-1 accepts them all.
    return isinstance(json.loads(line.removeprefix(codecs.BOM_UTF8).decode("latin-1")), dict)
  except (ValueError, RecursionError):
    return False


def record_end(kind, documents):
  """Returns the test for BlockReader.read of whether a record is complete; None for whole files."""
  if kind in _DELIMITERS:
    return _csv_record_ends
  if kind == "text" and documents == "file":
    return None
  if kind == "text" and documents == "blank_line":
    return lambda parts: not parts[-1].strip(_BLANK.encode() + b"\n")
  return lambda parts: True


def _csv_record_ends(parts):
  """Whether no quoted field is open: quotes inside fields are doubled, so their number is even."""
  if sum(map(len, parts)) > _MAX_CSV_RECORD:
    raise DataError("a quoted field does not end within 64 MiB")
  return sum(part.count(b'"') for part in parts) % 2 == 0


def text_documents(text, documents):
  """Splits text into documents.

  Args:
    text: of whole records.
    documents: "line", "blank_line" or "file".

  Returns:
    list of (line, document or Problem).
  """
  if documents == "file":
    return [(0, text.replace("\r\n", "\n"))]
  lines = text.split("\n")
  if lines[-1] == "":
    lines.pop()
  if documents == "line":
    return [(number, line.removesuffix("\r")) for number, line in enumerate(lines)]
  found, current = [], []
  for number, line in enumerate([*lines, ""]):
    if line.strip(_BLANK):
      current.append(line.removesuffix("\r"))
    elif current:
      found.append((number - len(current), "\n".join(current)))
      current = []
  return found


def json_documents(text, field, replace):
  """Parses JSON lines.

  Args:
    text: of whole lines.
    field: that holds the text; no other is looked at.
    replace: half surrogate pairs by U+FFFD, instead of refusing them.

  Returns:
    list of (line, document or Problem), with "" for an empty line.
  """
  lines = text.split("\n")
  if lines[-1] == "":
    lines.pop()
  return [(number, _parse_row(line, field, replace) if line.strip() else "")
          for number, line in enumerate(lines)]


def _parse_row(line, field, replace):
  try:
    row = json.loads(line)
  except (ValueError, RecursionError) as error:
    return Problem(f"not JSON: {' '.join(str(error).split())}")
  if not isinstance(row, dict):
    return Problem("not a JSON object {...}, one of which should be on each line")
  if field not in row:
    return Problem(missing_field(field, row))
  value = row[field]
  if not isinstance(value, str):
    return Problem(f"field {field!r} is {json.dumps(value)[:40]}, not a string")
  if not has_surrogates(value):
    return value
  if replace:
    return _SURROGATES.sub("\ufffd", value)
  return Problem(f"field {field!r} holds half a surrogate pair, which is no character; set "
                 "errors='replace'")


def has_surrogates(text):
  """Says whether a str holds half surrogate pairs, which are no characters."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return True
  return False


def missing_field(field, names):
  """Says that a row has no such field, and which it has."""
  have = ", ".join(map(repr, list(names)[:8]))
  return f"no field {field!r}; the row has {have}." + nearest(field, names)


def csv_header(path, kind, encoding, errors):
  """Reads the names of the columns of a "csv" or "tsv" file; `errors` as in bytes.decode."""
  stream = io.BytesIO(streams.head(path, streams.BLOCK_BYTES))
  lines = [stream.readline()]
  while lines[-1] and not _csv_record_ends(lines):
    lines.append(stream.readline())
  text = b"".join(lines).decode(encoding, errors).removeprefix("\ufeff")
  return next(csv.reader(io.StringIO(text, newline=""), delimiter=_DELIMITERS[kind]), [])


def csv_documents(text, kind, header, field, has_header):
  """Parses records of CSV (RFC 4180), or of the same with tabs.

  Args:
    text: of whole records.
    kind: "csv" or "tsv".
    header: names of the columns.
    field: the column that holds the text.
    has_header: whether the text begins with the header.

  Returns:
    list of (line, document or Problem).
  """
  if field not in header:
    if len(header) == 1 and ";" in header[0]:
      return [(0, Problem("its columns seem to be separated by ';': write it with commas, or with "
                          "tabs as .tsv"))]
    return [(0, Problem(missing_field(field, header)))]
  column, found, line = header.index(field), [], 0
  reader = csv.reader(io.StringIO(text, newline=""), delimiter=_DELIMITERS[kind], strict=True)
  while True:
    try:
      row = next(reader, None)
    except csv.Error as error:
      found.append((line, Problem(f"not CSV: {error}")))
      line = reader.line_num
      continue
    if row is None:
      return found[has_header:]
    if len(row) not in (0, len(header)):
      found.append((line, Problem(f"{len(row)} fields where the header has {len(header)}")))
    else:
      found.append((line, row[column] if row else ""))
    line = reader.line_num


class ParquetReader:
  """Texts of a column of parquet files by row, in batches.

  Readers are kept, each at the row where its last batch ended, as BlockReader keeps streams.
  """

  _BATCH_ROWS = 256
  _BUFFER_BYTES = 1 << 20
  _MAX_PARKED = 64

  def __init__(self):
    self._parked = {}
    self._lock = threading.Lock()

  def read(self, path, row, field):
    """Returns the values of the next rows, None where there is none, as a list; empty at the end.

    Raises:
      DataError: the column is missing or holds no text.
      OSError, ValueError: the file cannot be read.
    """
    with self._lock:
      batches = self._parked.pop((path, field, row), None)
    batches = batches or self._batches(path, row, field)
    values = next(batches, [])
    if values:
      with self._lock:
        self._parked[path, field, row + len(values)] = batches
        while len(self._parked) > self._MAX_PARKED:
          self._parked.pop(next(iter(self._parked))).close()
    return values

  def _batches(self, path, row, field):
    import pyarrow
    import pyarrow.parquet

    with streams.open_seekable(path) as stream:
      # With pre_buffer a row group's whole column would be in memory.
      file = pyarrow.parquet.ParquetFile(stream, buffer_size=self._BUFFER_BYTES, pre_buffer=False)
      if field not in file.schema_arrow.names:
        raise DataError(f"{path}: {missing_field(field, file.schema_arrow.names)}")
      column = file.schema_arrow.field(field).type
      value = column.value_type if pyarrow.types.is_dictionary(column) else column
      if not (pyarrow.types.is_string(value) or pyarrow.types.is_large_string(value)
              or pyarrow.types.is_string_view(value)):
        raise DataError(f"{path}: column {field!r} is of {column}, not of strings.")
      first = 0
      for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if first + size > row:
          for batch in file.iter_batches(self._BATCH_ROWS, row_groups=[group], columns=[field]):
            values = batch.column(0).to_pylist()[max(row - first, 0):]
            first += batch.num_rows
            if values:
              yield values
        else:
          first += size

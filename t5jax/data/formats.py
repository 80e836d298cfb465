"""What a file holds, and how its blocks become documents. Pure functions, without TensorFlow."""

import csv
import io
import json
import os
import re
import typing

from t5jax.data import streams
from t5jax.data.streams import DataError
from t5jax.settings import nearest

_KINDS = {".txt": "text", ".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv",
          ".parquet": "parquet"}
_PARQUET_MAGIC = b"PAR1"
_BLANK = " \t\r\f\v"  # What makes a line blank, as bytes and as text alike.
_MAX_CSV_RECORD = 1 << 26
_SURROGATES = re.compile("[\ud800-\udfff]")

csv.field_size_limit(_MAX_CSV_RECORD)


class Problem(typing.NamedTuple):
  """In place of a document: why a record cannot be used."""

  reason: str


def kind_of(path):
  """Says what a file holds: "text", "json" (lines), "csv" or "parquet".

  Its name decides, without .gz or .zst; where that says nothing, its content does.

  Raises:
    DataError: name and content contradict each other, or the file is empty.
  """
  kind = _KINDS.get(os.path.splitext(streams.uncompressed_name(path))[1].lower())
  if kind in ("text", "json", "csv"):
    return kind
  with streams.open_stream(path) as stream:
    head = stream.read(1 << 14)
  if head.startswith(_PARQUET_MAGIC):
    return "parquet"
  if kind == "parquet":
    raise DataError(f"{path}: is not parquet data in spite of its name; it begins with "
                    f"{head[:8]!r}.")
  return "json" if _looks_like_json(head) else "text"


def _looks_like_json(head):
  line = head.lstrip().split(b"\n", 1)[0]
  try:
    return isinstance(json.loads(line), dict)
  except ValueError:
    return False


def record_end(kind, documents):
  """Returns the test for BlockReader.read of whether a record is complete; None for whole files."""
  if kind == "csv":
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
    return Problem("not a JSON object {...}")
  if field not in row:
    return Problem(missing_field(field, row))
  value = row[field]
  if not isinstance(value, str):
    return Problem(f"field {field!r} is {json.dumps(value)[:40]}, not a string")
  if _SURROGATES.search(value):
    if not replace:
      return Problem(f"field {field!r} holds half a surrogate pair, which is no character; set "
                     "errors='replace'")
    value = _SURROGATES.sub("\ufffd", value)
  return value


def missing_field(field, names):
  """Says that a row has no such field, and which it has."""
  have = ", ".join(map(repr, list(names)[:8]))
  return f"no field {field!r}; the row has {have}." + nearest(field, names)


def csv_header(path, encoding):
  """Reads the names of the columns of a CSV file."""
  with streams.open_stream(path) as stream:
    lines = [stream.readline()]
    while lines[-1] and not _csv_record_ends(lines):
      lines.append(stream.readline())
  text = b"".join(lines).decode(encoding).removeprefix("\ufeff")
  return next(csv.reader(io.StringIO(text, newline="")), [])


def csv_documents(text, header, field, has_header):
  """Parses CSV records (RFC 4180).

  Args:
    text: of whole records.
    header: names of the columns.
    field: the column that holds the text.
    has_header: whether the text begins with the header.

  Returns:
    list of (line, document or Problem).
  """
  if field not in header:
    return [(0, Problem(missing_field(field, header)))]
  column, found, line = header.index(field), [], 0
  reader = csv.reader(io.StringIO(text, newline=""), strict=True)
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
  """Texts of a column of parquet files by row, in batches; one open reader per file and position."""

  _BATCH_ROWS = 256

  def __init__(self):
    self._parked = {}

  def read(self, path, row, field):
    """Returns the values of the next rows, None where there is none, as a list; empty at the end.

    Raises:
      DataError: the column is missing or holds no text.
      OSError, ValueError: the file cannot be read.
    """
    batches = self._parked.pop((path, row), None) or self._batches(path, row, field)
    values = next(batches, [])
    if values:
      self._parked[path, row + len(values)] = batches
      while len(self._parked) > 64:
        self._parked.pop(next(iter(self._parked)))
    return values

  def _batches(self, path, row, field):
    import pyarrow
    import pyarrow.parquet

    with streams.open_seekable(path) as stream:
      file = pyarrow.parquet.ParquetFile(stream)
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

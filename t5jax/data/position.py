"""The position in the data that a checkpoint holds: a small JSON file, and what it must fit."""

import json
import pathlib

from t5jax.data.text_files import DataError


def write(path, fingerprint, **state):
  """Writes `path`.json.

  Args:
    path: prefix of the files of a position.
    fingerprint: dict of what must be the same for the position to make sense.
    **state: what else to keep; anything JSON holds.
  """
  text = json.dumps({**state, "pipeline": fingerprint}, indent=1)
  pathlib.Path(f"{path}.json").write_text(text)


def read(path, fingerprint):
  """Returns what `write` was given.

  Raises:
    DataError: there is nothing, or it is of another pipeline: the message says what differs.
  """
  try:
    state = json.loads(pathlib.Path(f"{path}.json").read_text())
    saved = state["pipeline"]
  except (OSError, ValueError, KeyError) as error:
    raise DataError(f"{path}: holds no position in the data that can be read.") from error
  current = json.loads(json.dumps(fingerprint))
  changed = [f"{name}: {_short(saved.get(name))} then, {_short(current.get(name))} now"
             for name in current if saved.get(name) != current[name]]
  if changed:
    raise DataError(f"{path}: the position is of another data pipeline; {'; '.join(changed)}.")
  return state


def _short(value):
  text = json.dumps(value)
  return text if len(text) <= 80 else text[:77] + "..."

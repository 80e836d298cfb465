"""Folders that more than one process may want, or find half written."""

import contextlib
import fcntl
import os
import pathlib
import tempfile

from t5jax.settings import SettingError


def make_folder(setting, path):
  """Makes a folder that can be written to, and those above it, unless they are there.

  Args:
    setting: name of the setting that gave it, for the error.
    path: str or path; `~` is expanded.

  Returns:
    pathlib.Path.

  Raises:
    SettingError: it cannot be made, or nothing be written there.
  """
  folder = pathlib.Path(path).expanduser()
  try:
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
  except OSError as error:
    raise SettingError(setting, str(path), f"a folder to write to ({error.strerror})") from error
  return folder


@contextlib.contextmanager
def exclusive(folder, busy):
  """Keeps other processes out of a folder while the context lasts; the system ends it with us.

  Args:
    folder: a pathlib.Path that exists.
    busy: exception to raise if another process is there.
  """
  with open(folder / ".lock", "w", encoding="ascii") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise busy from None
    yield


def write_atomically(path, text):
  """Writes a text file so that a reader sees the old or the new one, never a part."""
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(text, encoding="utf-8")
  os.replace(temporary, path)

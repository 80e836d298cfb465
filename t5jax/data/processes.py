"""Processes that share a folder, and those that must end with the one that started them."""

import contextlib
import fcntl
import multiprocessing
import os
import threading

from t5jax.data.text_files import DataError


@contextlib.contextmanager
def exclusive(folder):
  """Keeps other processes out of a folder while the context lasts.

  Args:
    folder: a pathlib.Path that exists.

  Raises:
    DataError: another process is there.
  """
  with open(folder / ".lock", "w", encoding="ascii") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise DataError(f"{folder}: another process is writing here.") from error
    yield


def end_with_parent():
  """Ends this process when its parent ends, however it does; workers would stay for ever."""

  def watch():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()

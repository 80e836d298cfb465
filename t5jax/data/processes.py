"""Worker processes that end with the one that started them."""

import multiprocessing
import os
import threading


def end_with_parent():
  """Ends this process when its parent ends, however it does; workers would stay for ever."""

  def watch():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()

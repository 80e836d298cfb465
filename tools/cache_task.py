"""Tokenises the text of a run, or of a task, once: training then reads ids at the disk's speed.

    python tools/cache_task.py --gin_file=text.gin --gin.MODEL_DIR=runs/mine \\
      --gin.TRAIN_FILES='corpus/*.jsonl' --gin.VOCAB_FILE=spiece.model --gin.CACHE_DIR=cache

    python tools/cache_task.py --task=my_corpus --module=my_tasks --cache_dir=cache

Train with the same flags and --gin.USE_CACHED_TASKS=True. A build that was stopped goes on when the
same command is given again; what is finished is left alone.
"""

import argparse
import os
import pathlib
import sys

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from t5jax.data import arguments as data_arguments
from t5jax.settings import Range, SettingError, check_numbers


def main(arguments=None):
  """Builds the caches and says what they hold."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
  data_arguments.add_arguments(parser)
  parser.add_argument("--cache_dir", help="folder of the caches; for --gin_file, its CACHE_DIR")
  parser.add_argument("--processes", type=int, default=1,
                      help="that read; tokenising uses all cores in any case")
  options, rest = parser.parse_known_args(arguments)
  check_numbers("cache_task", processes=(options.processes, Range(1, os.cpu_count())))
  data, _ = data_arguments.task_data(options, rest)
  cache_dir = options.cache_dir or data.cache_dir
  if cache_dir is None:
    raise SettingError("--cache_dir", None, "a folder, here or as --gin.CACHE_DIR")
  from t5jax.data import cache

  for report in cache.build(data, cache_dir, options.processes):
    print(report)


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  try:
    main()
  except ValueError as error:
    sys.exit(f"cache_task: {error}")
  except KeyboardInterrupt:
    sys.exit("cache_task: stopped. The same command goes on from here.")

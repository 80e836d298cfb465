"""How the tools that look at data are told which: by the flags of a run, or by a task's name."""

import importlib
import os
import sys

from t5jax.data.iterator import TaskData
from t5jax.settings import SettingError


def add_arguments(parser):
  """Adds the flags to an argparse parser; --gin.NAME=value are left over by parse_known_args."""
  parser.add_argument("--gin_file", action="append", metavar="FILE",
                      help="the configuration of a run, with its --gin.NAME=value")
  parser.add_argument("--task", metavar="NAME", help="instead: a registered task, or a corpus of "
                      "t5jax.tasks such as danish.dynaword")
  parser.add_argument("--module", help="to import first, which registers --task")
  parser.add_argument("--vocab_file", help="SentencePiece model of a corpus of t5jax.tasks")
  parser.add_argument("--input_length", type=int, default=512, help="tokens of inputs of --task")
  parser.add_argument("--target_length", type=int, default=114, help="tokens of its targets")


def add_reading_arguments(parser):
  """Adds the flags that say how text files are read to an argparse parser; see TextFiles."""
  add = parser.add_argument
  add("--documents", default="line", choices=["line", "blank_line", "file"], help="of .txt")
  add("--field", default="text", help="of rows")
  add("--encoding", default="utf-8", help="of the files")
  add("--errors", default="strict", choices=["strict", "replace"], help="undecodable bytes")
  add("--on_error", default="refuse", choices=["refuse", "skip"], help="unusable records")


def reading(options):
  """Returns what `add_reading_arguments` parsed, as keyword arguments of TextFiles."""
  return {name: getattr(options, name)
          for name in ("documents", "field", "encoding", "errors", "on_error")}


def task_data(options, rest):
  """Builds what the flags stand for.

  Args:
    options: namespace of the flags.
    rest: the arguments left over: --gin.NAME=value.

  Returns:
    (TaskData, folder of the run that it belongs to, or None).

  Raises:
    ValueError: names the flag that is wrong.
  """
  if unknown := [flag for flag in rest if not flag.startswith("--gin.")]:
    raise SettingError("argument", unknown[0], "--gin.NAME=value, or a flag that --help shows")
  if bool(options.gin_file) == bool(options.task):
    raise SettingError("--task", options.task, "either --gin_file or --task")
  sys.path.insert(0, os.getcwd())  # Where the modules of one's own are, as with python -m.
  if options.gin_file:
    from t5jax import config

    bindings = [flag.removeprefix("--gin.") for flag in rest]
    trainer, _ = config.build("t5jax.trainer.Trainer", options.gin_file, bindings)
    return trainer.data, trainer.model_dir
  if rest:
    raise SettingError("argument", rest[0], "none with --task: corpora with settings are given by "
                       "--gin_file")
  lengths = {"inputs": options.input_length, "targets": options.target_length}
  return TaskData(task=_task(options), module=options.module, feature_lengths=lengths,
                  batch_size=1), None


def _task(options):
  module, _, name = options.task.rpartition(".")
  if options.module or not module:
    return options.task
  try:
    corpus = getattr(importlib.import_module(f"t5jax.tasks.{module}"), name)
  except (ImportError, AttributeError) as error:
    raise SettingError("--task", options.task, "a corpus of t5jax.tasks, such as danish.dynaword, "
                       "or the name of a task that --module registers") from error
  try:
    return corpus(vocab_file=options.vocab_file) if options.vocab_file else corpus()
  except TypeError as error:
    raise SettingError("--task", options.task, "a corpus that needs no settings; those of others "
                       f"are given by --gin_file ({error})") from error

"""Trains a T5: python -m t5jax.train --gin_file=base.gin --gin.MODEL_DIR=runs/a

Any macro or parameter of the gin file can be set with --gin.NAME=value; strings need no quotes.
A run that was stopped goes on when the same command is given again. With T5JAX_TRACEBACK=1 in the
environment an error shows where it comes from. On several hosts, see MULTIHOST.md.
"""

import argparse
import contextlib
import dataclasses
import os
import sys


def parse_arguments(argv=None, description=__doc__):
  """Returns (namespace, bindings): the flags, and every --gin.NAME=value as "NAME=value"."""
  parser = argparse.ArgumentParser(
      prog="python -m t5jax.train", description=description, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--gin_file", action="append", required=True, metavar="FILE",
                      help="configuration, from the current folder or t5jax's own; may be repeated")
  parser.add_argument("--overwrite", action="store_true",
                      help="delete the run that MODEL_DIR holds and start anew")
  parser.add_argument("--allow_changes", action="store_true",
                      help="go on with the run that MODEL_DIR holds although settings have changed")
  parser.add_argument("--stop_at_step", type=int, metavar="N",
                      help="save and leave at this step; the schedules still run to the whole budget")
  parser.add_argument("--check", action="store_true",
                      help="only check the configuration and the data, then leave")
  parser.add_argument("--dry_run", action="store_true",
                      help="only compile the train step and say what memory it needs")
  parser.add_argument("--profile", type=_steps, metavar="FIRST:LAST",
                      help="record what the devices do in these steps, for TensorBoard's profiler")
  parser.add_argument("--print_schedule", nargs="?", const="", metavar="FILE",
                      help="only list the learning rate over the run, and draw it into FILE")
  _add_process_arguments(parser.add_argument_group("runs of several processes"))
  argv = sys.argv[1:] if argv is None else argv
  # Taken out first: to argparse a flag with a space in it is the value of the one before.
  bindings = [flag.removeprefix("--gin.") for flag in argv if flag.startswith("--gin.")]
  arguments, rest = parser.parse_known_args([f for f in argv if not f.startswith("--gin.")])
  if arguments.stop_at_step is not None and arguments.stop_at_step < 1:
    parser.error(f"--stop_at_step={arguments.stop_at_step}: expected a step >= 1")
  if rest:
    parser.error(f"unknown argument {rest[0]}; settings are given as --gin.NAME=value")
  return arguments, bindings


def _steps(text):
  """"10:15" -> (10, 15)."""
  first, _, last = text.partition(":")
  if not (first.isdigit() and last.isdigit() and 2 <= int(first) <= int(last)):
    raise argparse.ArgumentTypeError(f"{text!r}: expected FIRST:LAST, numbers of steps from 2 on, as 10:15")
  return int(first), int(last)


def _add_process_arguments(group):
  group.add_argument("--distributed", choices=["auto", "on", "off"], default="auto",
                     help="auto: join the others on a TPU slice and under Slurm; on: wherever JAX "
                     "finds a cluster; off: train on this host alone")
  group.add_argument("--coordinator_address", metavar="HOST:PORT",
                     help="elsewhere: where process 0 is to be found")
  group.add_argument("--num_processes", type=int, metavar="N", help="elsewhere: how many there are")
  group.add_argument("--process_id", type=int, metavar="I", help="elsewhere: which this is, from 0")
  group.add_argument("--initialization_timeout", type=int, default=300, metavar="SECONDS",
                     help="until all must have come")
  group.add_argument("--heartbeat_timeout_seconds", type=int, default=100, metavar="SECONDS",
                     help="without a sign of life, after which a process counts as dead")


def show_schedule(trainer, path):
  """Prints the learning rate over the run; draws it into the file `path` unless that is empty."""
  from t5jax import schedule_table
  parts = trainer.learning_rate, trainer.schedule, trainer.budget
  if path:
    schedule_table.plot(*parts, path)
  print(schedule_table.table(*parts))


def show_memory(trainer):
  """Prints what memory the train step needs on each device: as estimated, and as compiled."""
  import tempfile

  import jax
  from t5jax import memory
  with tempfile.TemporaryDirectory() as folder:
    model = trainer.model.with_vocabulary(trainer.data.prepare(folder).size)
  mesh = trainer.mesh.make()
  step = (model, trainer.optimizer, mesh, trainer.data.batch_size, trainer.data.feature_lengths,
          trainer.num_microbatches)
  is_cpu = jax.default_backend() == "cpu"  # Its own memory is the host's.
  estimated = memory.estimate(*step, native_bfloat16=not is_cpu,
                              optimizer_memory="device" if is_cpu else trainer.optimizer_memory)
  print(f"{memory.num_parameters(model):,} parameters, mesh {dict(mesh.shape)}; compiling ...")
  planned = memory.compiled(*step, trainer.max_grad_norm, trainer.z_loss, trainer.optimizer_memory,
                            trainer.data.pack)
  print(memory.comparison(estimated, planned))


def run(arguments, bindings):
  """Does what the flags say; returns the exit status.

  Raises:
    ValueError, TrainingDiverged: what a user can do something about.
  """
  from t5jax import config, distributed, hooks, rundir
  trainer, resolved = config.build("t5jax.trainer.Trainer", arguments.gin_file, bindings,
                                   opens_files=arguments.print_schedule is None)
  if arguments.print_schedule is not None:
    show_schedule(trainer, arguments.print_schedule)
    return 0
  if arguments.profile:
    trainer = dataclasses.replace(trainer, hooks=(*trainer.hooks, hooks.Profile(*arguments.profile)))
  distributed.start(arguments.distributed, arguments.coordinator_address, arguments.num_processes,
                    arguments.process_id, arguments.initialization_timeout,
                    arguments.heartbeat_timeout_seconds)
  with distributed.failing_together(), memory_advice(trainer):
    distributed.together(trainer.check)
    if arguments.dry_run:
      show_memory(trainer)
      return 0
    if arguments.check:
      rundir.check(trainer.model_dir, resolved, arguments.overwrite, arguments.allow_changes)
      trainer.data.check_cache()
      print(f"{resolved}\nThe settings and the first records of the data are fine.")
      return 0
    with rundir.claim(trainer.model_dir, resolved, arguments.overwrite, arguments.allow_changes):
      done = trainer.run(arguments.stop_at_step)
  if done.status == "stopped":
    done.say(f"Stopped at step {done.spent.steps}, saved. The same command goes on from there.")
  return 128 + done.signal if done.signal else 0  # As a shell reports a process that a signal ended.


@contextlib.contextmanager
def memory_advice(trainer):
  """Turns the error of a device whose memory is full into a ValueError that says what to do."""
  import jax
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    from t5jax import memory
    raise ValueError(memory.advice(trainer, error)) from error


def main(argv=None):
  """Runs the command; returns its exit status."""
  arguments, bindings = parse_arguments(argv)
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  # JAX takes seconds to load: not before the flags are right.
  from t5jax import compilation, distributed
  from t5jax.hooks import TrainingDiverged
  compilation.keep_programs()
  status = 1
  try:
    status = run(arguments, bindings)
  except (ValueError, TrainingDiverged) as error:
    if "T5JAX_TRACEBACK" in os.environ:
      raise
    print(f"error: {error}", file=sys.stderr)
  finally:
    distributed.finish(status)
  return status


if __name__ == "__main__":
  sys.exit(main())

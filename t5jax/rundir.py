"""The model directory of a run: who may start in it, and the records it holds besides checkpoints.

    config.gin          the resolved configuration; training again with it gives the same run
    run-info.json       the starts, versions, devices, tokenizer hash
    model-info.txt      every parameter: shape, dtype, sharding
    model_config.json   the architecture
    spiece.model        the tokenizer
    metrics.jsonl       what was logged, a line each
    tensorboard/        the same as curves
    checkpoints/        the states
"""

import contextlib
import datetime
import importlib.metadata
import json
import pathlib
import platform
import shutil
import sys
import tempfile
import time

import jax
import numpy as np

from t5jax import config, distributed, sharding
from t5jax.checkpoint import saved_steps
from t5jax.folders import exclusive, write_atomically

# What may change when a run goes on: where it runs, in how much memory, and how often it reports.
_FREE_SETTINGS = (r"(hooks|finish|sharding|checkpoint)\.", r".*_PERIOD$", r".*\.num_eval_batches$",
                  r"(trainer\.)?Trainer\.(hooks|num_microbatches|optimizer_memory|mesh|model_dir|checkpoints)$",
                  r".*\.(remat|decoder_remat)$",
                  r"(MODEL_DIR|MICROBATCHES|REMAT|OPTIMIZER_MEMORY|EVAL_STEPS|KEEP_CHECKPOINTS|TENSOR|SLICES)$")
_OURS = ("config.gin", "run-info.json", "model-info.txt", "model_config.json", "spiece.model",
         "metrics.jsonl", "loss.png", "tensorboard", "checkpoints", "hf")


@contextlib.contextmanager
def claim(model_dir, resolved_config, overwrite=False, allow_changes=False):
  """Within it, the directory belongs to this run with this configuration.

  Of several processes the first claims it, and the others look whether they see that.

  Args:
    model_dir: its path; made if missing.
    resolved_config: the text that config.build returned.
    overwrite: delete an earlier run's files and start anew.
    allow_changes: go on with an earlier run although settings have changed, and say which.

  Raises:
    ValueError: it holds a run of another configuration, another process is at work in it, it cannot be
      written, or the processes of this run have different configurations.
  """
  path = pathlib.Path(model_dir).expanduser()
  configs = distributed.share(resolved_config)
  for process, text in enumerate(configs):
    if listed := _listed(config.differences(configs[0], text), "in process 0", f"in process {process}"):
      raise ValueError(f"The processes of this run have other settings ({listed}). Give the same command "
                       "on every host.")
  with contextlib.ExitStack() as stack:
    distributed.first_then_others(lambda: (
        stack.enter_context(_claim(path, configs[0], overwrite, allow_changes))
        if distributed.is_first() else _see_claim(path, configs[0])))
    yield path


def check(model_dir, resolved_config, overwrite=False, allow_changes=False):
  """Raises ValueError where `claim` would, but changes nothing."""
  path = pathlib.Path(model_dir).expanduser()
  if not overwrite:
    _changes(path, resolved_config, allow_changes)
  nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
  try:
    tempfile.TemporaryFile(dir=nearest).close()
  except OSError as error:
    raise _cannot_be_written(path, error) from error


def _cannot_be_written(path, error):
  return ValueError(f"MODEL_DIR={path} cannot be written: {error.strerror}.")


def _see_claim(path, resolved_config, seconds=30):
  """Raises ValueError unless the first process's config.gin is here, or soon will be."""
  until = time.monotonic() + seconds  # Network file systems take a while.
  while not (path / "config.gin").is_file() or (
      (path / "config.gin").read_text(encoding="utf-8") != resolved_config):
    if time.monotonic() > until:
      raise ValueError(
          f"MODEL_DIR={path}: another process does not see the config.gin that process 0 has written "
          "there. All need a file system in common.")
    time.sleep(0.5)


@contextlib.contextmanager
def _claim(path, resolved_config, overwrite, allow_changes):
  try:
    path.mkdir(parents=True, exist_ok=True)
    (path / ".lock").touch()
  except OSError as error:
    raise _cannot_be_written(path, error) from error
  with exclusive(path, ValueError(f"MODEL_DIR={path} is in use by another process.")):
    before = _prepare(path, resolved_config, overwrite, allow_changes)
    steps = saved_steps(path)
    try:
      yield
    except ValueError:
      if before is not None and saved_steps(path) == steps:
        # Refused: the run that is there keeps the settings that fit it.
        write_atomically(path / "config.gin", before)
      raise


def _prepare(path, resolved_config, overwrite, allow_changes):
  """Writes config.gin; returns what it held for the run that is going on, or None."""
  if overwrite:
    for name in _OURS:
      if (path / name).is_dir():
        shutil.rmtree(path / name)
      else:
        (path / name).unlink(missing_ok=True)
  before = _changes(path, resolved_config, allow_changes)
  write_atomically(path / "config.gin", resolved_config)
  return before


def _changes(path, resolved_config, allow_changes):
  """Refuses, or says, what differs from the run that is going on; returns its config.gin, or None."""
  old = path / "config.gin"
  if not (old.is_file() and saved_steps(path)):
    return None
  before = old.read_text()
  if listed := _listed(config.differences(before, resolved_config, _FREE_SETTINGS), "there", "now"):
    if not allow_changes:
      raise ValueError(
          f"MODEL_DIR={path} holds a run with other settings ({listed}). Use the same settings to "
          "go on with it, --allow_changes to go on with these, another MODEL_DIR, or --overwrite "
          "to delete it and start anew.")
    print(f"Note: settings have changed ({listed}).")
  return before


def _listed(differences, here, there):
  return "; ".join(f"{name}: {a} {here}, {b} {there}" for name, (a, b) in differences.items())


def write_run_info(path, vocabulary):
  """Records in run-info.json: each start's time and arguments; versions, devices, tokenizer."""
  packages = ("t5jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "seqio", "tensorflow",
              "tensorflow-text", "sentencepiece", "numpy")
  versions = {}
  for package in packages:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  info_path = path / "run-info.json"
  starts = json.loads(info_path.read_text())["starts"] if info_path.is_file() else []
  now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
  info = dict(starts=[*starts, dict(time=now, arguments=sys.argv[1:])],
              python=sys.version.split()[0], platform=platform.platform(), versions=versions,
              devices=[d.device_kind for d in jax.devices()], processes=jax.process_count(),
              tokenizer_ids=vocabulary.size, tokenizer_sha256=vocabulary.sha256)
  write_atomically(info_path, json.dumps(info, indent=2) + "\n")


def check_tokenizer(path, vocabulary):
  """Raises ValueError if the run in `path` was trained with another tokenizer."""
  info = path / "run-info.json"
  if saved_steps(path) and info.is_file():
    before = json.loads(info.read_text())["tokenizer_sha256"]
    if before != vocabulary.sha256:
      raise ValueError(
          f"The checkpoints in {path} belong to another tokenizer (sha256 {before[:12]}..., now "
          f"{vocabulary.sha256[:12]}...). Use the spiece.model they were trained with.")


def write_model_info(path, abstract_state, mesh):
  """Writes model-info.txt: each parameter's name, shape, dtype and sharding, and the totals."""
  rows = []
  for part in ("params", "opt_state"):
    tree = getattr(abstract_state, part)
    for key, leaf in jax.tree_util.tree_leaves_with_path(tree):
      name = part + jax.tree_util.keystr(key, simple=True, separator="/").join(("/", ""))
      memory = " in the host's memory" if leaf.sharding.memory_kind == sharding.HOST_MEMORY else ""
      rows.append(f"{name:90} {str(leaf.shape):24} {leaf.dtype!s:9} {leaf.sharding.spec}{memory}")
    size = sum(np.prod(leaf.shape, dtype=np.int64) for leaf in jax.tree.leaves(tree))
    num_bytes = sum(np.prod(leaf.shape, dtype=np.int64) * leaf.dtype.itemsize
                    for leaf in jax.tree.leaves(tree))
    rows.append(f"total {part}: {size:,} numbers, {num_bytes:,} bytes\n")
  write_atomically(path / "model-info.txt", f"{_mesh_info(mesh)}\n\n" + "\n".join(rows))


def _mesh_info(mesh):
  """The mesh's axes, and the devices along them, by process and id."""
  rows = [f"mesh: {dict(mesh.shape)}"]
  for index, group in enumerate(mesh.devices):  # Along `data`, each [fsdp, tensor].
    cells = ["[" + " ".join(f"{d.process_index}:{d.id}" for d in row) + "]" for row in group]
    rows.append(f"  data {index}: {' '.join(cells)}")
  return "\n".join([rows[0] + ", process:device in brackets of `tensor`, side by side along `fsdp`",
                    *rows[1:]])


def open_record(path, step):
  """Returns the Record of a run in the process that keeps it, and one that keeps nothing elsewhere."""
  return Record(path, step) if distributed.is_first() else _NoRecord()


class _NoRecord:
  """The interface of a Record, without one."""

  def write(self, step, values):
    """Does nothing."""

  def close(self):
    """Does nothing."""


class Record:
  """metrics.jsonl and TensorBoard: numbers by step. Lines after `step` are cut off on opening."""

  def __init__(self, path, step):
    from clu import metric_writers  # Loads TensorFlow.
    file_path = path / "metrics.jsonl"
    lines = file_path.read_text().splitlines(keepends=True) if file_path.is_file() else []
    lines = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
    write_atomically(file_path, "".join(lines))
    # A finished run that is started again evaluates again, with the same result.
    self._last = [line for line in lines if json.loads(line)["step"] == step]
    self._file = file_path.open("a", encoding="utf-8")
    self._tensorboard = metric_writers.SummaryWriter(str(path / "tensorboard"))

  def write(self, step, values):
    """Appends {name: number} for a step."""
    line = json.dumps(dict(step=step, **values)) + "\n"
    if line in self._last:
      return
    self._file.write(line)
    self._file.flush()
    self._tensorboard.write_scalars(step, values)
    self._tensorboard.flush()

  def close(self):
    """Flushes both."""
    self._file.close()
    self._tensorboard.close()

"""The model directory of a run: who may start in it, and the records it holds besides checkpoints.

    config.gin          the resolved configuration; training again with it gives the same run
    run-info.json       command, versions, devices, tokenizer hash
    model-info.txt      every parameter: shape, dtype, sharding
    model_config.json   the architecture
    spiece.model        the tokenizer
    metrics.jsonl       what was logged, a line each
    tensorboard/        the same as curves
    checkpoints/        the states
"""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import shutil
import sys

import jax
import numpy as np

from t5jax import config
from t5jax.checkpoint import checkpoint_dir

# What may change when a run goes on: where it runs, how long, how often it reports.
_FREE_SETTINGS = (r"(hooks|finish|sharding|checkpoint|budget)\.", r".*_PERIOD$",
                  r"(trainer\.)?Trainer\.(hooks|num_microbatches|mesh|budget|model_dir|checkpoints)$",
                  r".*\.(num_eval_batches|total_steps)$",
                  r"(MODEL_DIR|TRAIN_STEPS|MICROBATCHES|EVAL_STEPS|KEEP_CHECKPOINTS)$")
_OURS = ("config.gin", "run-info.json", "model-info.txt", "model_config.json", "spiece.model",
         "metrics.jsonl", "loss.png", "tensorboard", "checkpoints", "hf")


def claim(model_dir, resolved_config, overwrite=False):
  """Makes the directory ready for a run with this configuration.

  Args:
    model_dir: its path; made if missing.
    resolved_config: the text that config.build returned.
    overwrite: delete an earlier run's files and start anew.

  Raises:
    ValueError: it holds a run of another configuration, or cannot be written.
  """
  path = pathlib.Path(model_dir).expanduser()
  try:
    path.mkdir(parents=True, exist_ok=True)
    (path / ".writable").touch()
    (path / ".writable").unlink()
  except OSError as error:
    raise ValueError(f"MODEL_DIR={model_dir} cannot be written: {error.strerror}.") from error
  if overwrite:
    for name in _OURS:
      if (path / name).is_dir():
        shutil.rmtree(path / name)
      else:
        (path / name).unlink(missing_ok=True)
  old = path / "config.gin"
  if old.is_file() and has_checkpoint(path):
    changed = config.differences(old.read_text(), resolved_config, _FREE_SETTINGS)
    if changed:
      listed = "; ".join(f"{name}: {a} there, {b} now" for name, (a, b) in changed.items())
      raise ValueError(
          f"MODEL_DIR={model_dir} holds a run with other settings ({listed}). Use the same settings "
          "to go on with it, another MODEL_DIR, or --overwrite to delete it and start anew.")
  write_atomically(path / "config.gin", resolved_config)
  return path


def has_checkpoint(path):
  """True if the model directory holds a complete checkpoint."""
  return any(p.name.isdigit() for p in checkpoint_dir(path).glob("*"))


def write_atomically(path, text):
  """Writes a text file so that a reader sees the old or the new one, never a part."""
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(text, encoding="utf-8")
  os.replace(temporary, path)


def write_run_info(path, vocabulary):
  """Records what this process is, in run-info.json: command, versions, devices, tokenizer."""
  packages = ("t5jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "seqio", "tensorflow",
              "tensorflow-text", "sentencepiece", "numpy")
  versions = {}
  for package in packages:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  info = dict(command=sys.argv, python=sys.version.split()[0], versions=versions,
              devices=[d.device_kind for d in jax.devices()], processes=jax.process_count(),
              tokenizer_ids=vocabulary.size, tokenizer_sha256=vocabulary.sha256)
  write_atomically(path / "run-info.json", json.dumps(info, indent=2) + "\n")


def check_tokenizer(path, vocabulary):
  """Raises ValueError if the run in `path` was trained with another tokenizer."""
  info = path / "run-info.json"
  if has_checkpoint(path) and info.is_file():
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
      rows.append(f"{name:90} {str(leaf.shape):24} {leaf.dtype!s:9} {leaf.sharding.spec}")
    size = sum(np.prod(leaf.shape, dtype=np.int64) for leaf in jax.tree.leaves(tree))
    num_bytes = sum(np.prod(leaf.shape, dtype=np.int64) * leaf.dtype.itemsize
                    for leaf in jax.tree.leaves(tree))
    rows.append(f"total {part}: {size:,} numbers, {num_bytes:,} bytes\n")
  write_atomically(path / "model-info.txt", f"mesh: {dict(mesh.shape)}\n\n" + "\n".join(rows))


class Record:
  """metrics.jsonl and TensorBoard: numbers by step. Lines after `step` are cut off on opening."""

  def __init__(self, path, step):
    from clu import metric_writers  # Loads TensorFlow.
    self._file_path = path / "metrics.jsonl"
    if self._file_path.is_file():
      kept = [line for line in self._file_path.read_text().splitlines(keepends=True)
              if line.endswith("\n") and json.loads(line)["step"] <= step]
      write_atomically(self._file_path, "".join(kept))
    self._file = self._file_path.open("a", encoding="utf-8")
    self._tensorboard = metric_writers.SummaryWriter(str(path / "tensorboard"))

  def write(self, step, values):
    """Appends {name: number} for a step."""
    self._file.write(json.dumps(dict(step=step, **values)) + "\n")
    self._file.flush()
    self._tensorboard.write_scalars(step, values)
    self._tensorboard.flush()

  def close(self):
    """Flushes both."""
    self._file.close()
    self._tensorboard.close()

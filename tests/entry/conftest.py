"""Runs the entry points as a user does: in a process of their own, from a folder of their own."""

import json
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest

PROBE = '''
import dataclasses, hashlib, os, pathlib, signal
import jax, numpy as np

@dataclasses.dataclass
class Digest:
  """Writes a hash of the whole state when the run ends."""
  every = None
  on_stop = True
  def __call__(self, run):
    leaves = [np.asarray(x).tobytes() for x in jax.tree.leaves(jax.device_get(run.state))]
    (run.path / "digest").write_text(f"{run.spent.steps} {hashlib.sha256(b''.join(leaves)).hexdigest()}")
    assert run.spent.steps < 20 or run.data.epoch >= 1

@dataclasses.dataclass
class Kill:
  """Sends this process a signal after a step."""
  at_step: int
  signal: str = "SIGKILL"
  every = 1
  def __call__(self, run):
    if run.spent.steps == self.at_step:
      os.kill(os.getpid(), getattr(signal, self.signal))
'''

TINY = '''from __gin__ import dynamic_registration
import probe
from t5jax import hooks
from t5jax import trainer
from t5jax.data import iterator
from t5jax.tasks import text
include "models/t5_1_1.gin"
include "optimizers/{optimizer}.gin"
include "runs/pretrain.gin"
MODEL_SIZE = "tiny"
DTYPE = "float32"
DROPOUT_RATE = 0.1
BATCH_SIZE = 8
TASK_FEATURE_LENGTHS = {{"inputs": 32, "targets": 9}}
SHUFFLE_BUFFER_SIZE = 20
TRAIN_STEPS = 20
WARMUP_STEPS = 5
LOG_PERIOD = 3
EVAL_PERIOD = 10
CHECKPOINT_PERIOD = 5
iterator.TaskData.task = @text.TextCorpus()
text.TextCorpus.files = "text.txt"
text.TextCorpus.vocab_size = 180
trainer.Trainer.hooks = [@hooks.Log(), @hooks.Evaluate(), @hooks.Save(), @hooks.ProgressBar(),
                         @probe.Digest()]
'''

KILL = '''from __gin__ import dynamic_registration
import probe
from t5jax import hooks
from t5jax import trainer
include "tiny.gin"
trainer.Trainer.hooks = [@hooks.Log(), @hooks.Evaluate(), @hooks.Save(), @probe.Kill(), @probe.Digest()]
'''

WORDS = ("jeg du han hun vi bor går ser spiser drikker huset byen vandet skoven mad kaffe brød om på "
         "i ved og men fordi stor lille gammel ny rød grøn æble øl å").split()


def write_project(folder, optimizer="adamw_rms"):
  """Fills a folder with a text of about 100 documents and tiny.gin, and kill.gin, whose run ends early."""
  rng = random.Random(0)
  lines = [" ".join(rng.choices(WORDS, k=rng.randint(10, 40))).capitalize() + "." for _ in range(100)]
  (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
  (folder / "probe.py").write_text(PROBE)
  (folder / "kill.gin").write_text(KILL)
  (folder / "tiny.gin").write_text(TINY.format(optimizer=optimizer))
  return folder


@pytest.fixture
def project(tmp_path):
  """A folder with a small text and tiny.gin."""
  return write_project(tmp_path)


def xla_flags(num_devices):
  """XLA_FLAGS of a process with so many fake devices."""
  return re.sub(r"device_count=\d+", f"device_count={num_devices}", os.environ["XLA_FLAGS"])


def run_module(module, *arguments, cwd, num_devices=1, check=True, timeout=300, env=None):
  """Runs `python -m module`; returns the CompletedProcess, output as text, both streams in stdout."""
  environment = {**os.environ, "XLA_FLAGS": xla_flags(num_devices), **(env or {})}
  # A checkout that is not installed is found too, but only after the current folder.
  root = str(pathlib.Path(__file__).parents[2])
  environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
  done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=cwd, env=environment,
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
  assert not check or done.returncode == 0, done.stdout[-4000:]
  return done


TIMES = ("seconds", "tokens_per_second", "seconds_per_step")


def records(model_dir):
  """The lines of metrics.jsonl without what depends on the clock."""
  lines = (model_dir / "metrics.jsonl").read_text().splitlines()
  return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]

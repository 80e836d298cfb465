"""A run of two processes of four devices: killed, then continued by one, on eight devices and on one."""

import json

import pytest

from tests.entry.conftest import write_project
from tests.multiprocess.launcher import launch

DEATH = '''
import dataclasses, os, signal
import jax

@dataclasses.dataclass
class KillSecond:
  """Kills process 1, if there is one, after a step, when what was saved before is complete."""
  at_step: int = 5
  every = 1
  def __call__(self, run):
    if run.spent.steps == self.at_step and jax.process_count() > 1:
      run.checkpoints.wait()
      if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
'''

RUN = '''from __gin__ import dynamic_registration
import death
from t5jax import hooks
from t5jax import trainer
include "tiny.gin"
TRAIN_STEPS = 8
LOG_PERIOD = 1
EVAL_PERIOD = 6
CHECKPOINT_PERIOD = 3
trainer.Trainer.hooks = [@hooks.StopOnDivergence(), @hooks.Log(), @hooks.Evaluate(), @hooks.Save(),
                         @death.KillSecond(), @hooks.ProgressBar()]
'''
HEARTBEAT_SECONDS = 30


def train(project, name, *flags, count=1, num_devices=1):
  return launch(count, ["-m", "t5jax.train", "--gin_file=run.gin", f"--gin.MODEL_DIR={name}",
                        f"--heartbeat_timeout_seconds={HEARTBEAT_SECONDS}", *flags],
                cwd=project, num_devices=num_devices, together=count > 1)


def records(model_dir):
  """The lines of metrics.jsonl, those of training and those of evaluation, by step."""
  lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
  return [{x["step"]: x for x in lines if key in x} for key in ("loss", "eval/loss")]


def assert_same_curve(model_dir, expected, steps):
  for key, found, wanted in zip(("loss", "eval/loss"), records(model_dir), records(expected)):
    assert sorted(found) == [step for step in sorted(wanted) if step <= steps]
    for step, record in found.items():
      assert record[key] == pytest.approx(wanted[step][key], rel=1e-5), step
      assert record.get("tokens") == wanted[step].get("tokens")


def test_two_processes_are_continued_by_one(tmp_path):
  project = write_project(tmp_path)
  (project / "death.py").write_text(DEATH)
  (project / "run.gin").write_text(RUN)
  straight, = train(project, "straight")
  assert straight.status == 0, straight.output

  first, second = train(project, "run", "--gin.MeshConfig.fsdp=2", "--gin.MeshConfig.tensor=2", count=2,
                        num_devices=4)
  assert second.status == -9, second.output
  assert first.status == 1, first.output
  assert "Give the same command again on all hosts" in first.output
  assert first.seconds - second.seconds < 2 * HEARTBEAT_SECONDS
  assert_same_curve(project / "run", project / "straight", steps=5)
  assert (project / "run/checkpoints/3").is_dir()
  # One of two speaks and keeps records.
  assert "going on" not in first.output and "held-out targets" not in second.output
  assert "data 1: [1:" in (project / "run/model-info.txt").read_text()

  eight, = train(project, "run", "--gin_file=meshes/fsdp_tensor.gin", "--stop_at_step=6", num_devices=8)
  assert eight.status == 0 and "going on from step 3" in eight.output, eight.output
  one, = train(project, "run")
  assert one.status == 0 and "going on from step 6" in one.output, one.output
  assert_same_curve(project / "run", project / "straight", steps=8)

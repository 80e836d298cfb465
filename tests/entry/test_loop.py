"""The loop: no transfer that nobody asked for, one compilation, a profile on request."""

import re

import pytest

from tests.entry.conftest import run_module

GUARDED = '''
import sys
import jax
from t5jax import step as steps, train

class Guarded:
  """A train step that refuses what is not on the devices already."""
  def __init__(self, step):
    self.step, self.lower = step, step.lower
  def __call__(self, *arguments):
    with jax.transfer_guard("disallow"):
      return self.step(*arguments)

compile_train_step = steps.compile_train_step
steps.compile_train_step = lambda *layout, **settings: Guarded(compile_train_step(*layout, **settings))
sys.exit(train.main())
'''


@pytest.mark.slow
def test_nans_are_found_where_they_arise(project):
  done = run_module("t5jax.train", "--gin_file=tiny.gin", "--gin.MODEL_DIR=run", "--gin.LEARNING_RATE=1e30",
                    cwd=project, env={"JAX_DEBUG_NANS": "1"}, check=False)
  assert "FloatingPointError: invalid value (nan) encountered in" in done.stdout


def test_thirty_steps(project):
  (project / "guarded.py").write_text(GUARDED)
  done = run_module("guarded", "--gin_file=tiny.gin", "--gin.MODEL_DIR=run", "--gin.TRAIN_STEPS=30",
                    "--profile=3:4", cwd=project, num_devices=2, env={"JAX_LOG_COMPILES": "1"})
  assert len(re.findall(r"Finished XLA compilation of jit\(train_step\)", done.stdout)) == 1
  assert "Profile up to step 4" in done.stdout
  assert len(list((project / "run/tensorboard/plugins/profile").glob("*/*.xplane.pb"))) == 1

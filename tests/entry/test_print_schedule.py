"""--print_schedule, as a user calls it."""

import time

from tests.entry.conftest import run_module
from tests.entry.test_errors import SECONDS

FLAGS = ("--gin_file=base.gin", "--gin.C4_DIR=nowhere")
# A space in it: argparse must not take it for the name of the picture.
LENGTHS = '--gin.TASK_FEATURE_LENGTHS={"inputs": 64, "targets": 16}'


def test_lists_within_seconds_and_touches_nothing(tmp_path):
  began = time.monotonic()
  done = run_module("t5jax.train", "--print_schedule", LENGTHS, *FLAGS, cwd=tmp_path)
  assert time.monotonic() - began < SECONDS
  first, *_, last = done.stdout.splitlines()
  assert first.split()[0] == "steps" and last.split() == ["65,535", "100.0%", "1.0000e-05"]
  assert not list(tmp_path.iterdir())


def test_draws_without_knowing_of_any_text(tmp_path):
  run_module("t5jax.train", "--gin_file=text.gin", "--print_schedule=a.png", cwd=tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["a.png"]

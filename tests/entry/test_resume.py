"""A run that is cut into pieces, by whatever means, is bit for bit the run that is not."""

import pytest

from tests.entry.conftest import records, run_module, write_project


# A run on two devices with random roundings and Sophia's extra batches, and a plain one. The learning rate
# is that of the third update, at t = 2 of a warm-up of 5 from half of the peak.
@pytest.mark.parametrize("optimizer, precision, num_devices, learning_rate", [
    ("sophia_g_rms", "bfloat16_stochastic", 2, 0.7e-3),
    pytest.param("adamw_rms", "float32", 1, 1.4e-2, marks=pytest.mark.slow)])
def test_killed_and_divided_runs_equal_a_straight_one(tmp_path, optimizer, precision, num_devices,
                                                      learning_rate):
  project = write_project(tmp_path, optimizer)

  def train(name, *arguments, gin_file="tiny.gin", **options):
    return run_module("t5jax.train", f"--gin_file={gin_file}", f"--gin.MODEL_DIR={name}",
                      f"--gin.PARAM_PRECISION={precision}", *arguments, cwd=project,
                      num_devices=num_devices, **options)

  train("straight")
  killed = train("killed", "--gin.probe.Kill.at_step=7", gin_file="kill.gin", check=False)
  assert killed.returncode == -9
  train("killed")
  for stop in (6, 15, 20):
    train("divided", f"--stop_at_step={stop}")

  digest = (project / "straight" / "digest").read_text()
  assert digest.startswith("20 ")
  assert (project / "killed" / "digest").read_text() == digest
  assert (project / "divided" / "digest").read_text() == digest
  assert records(project / "killed") == records(project / "straight")
  assert records(project / "divided") == records(project / "straight")
  assert records(project / "straight")[0]["learning_rate"] == pytest.approx(learning_rate)
  # The configuration that a run leaves describes it completely.
  train("again", "--stop_at_step=5", gin_file="straight/config.gin")
  assert records(project / "again")[:1] == records(project / "straight")[:1]


def test_sigterm_saves_and_the_same_command_goes_on(project):
  command = ("t5jax.train", "--gin_file=kill.gin", "--gin.MODEL_DIR=run with spaces/æøå",
             "--gin.probe.Kill.signal=SIGTERM", "--gin.probe.Kill.at_step=8")
  first = run_module(*command, cwd=project, check=False)
  assert first.returncode == 143 and "Stopped at step 9" in first.stdout
  path = project / "run with spaces" / "æøå"
  assert (path / "checkpoints" / "9").is_dir()
  second = run_module(*command, cwd=project)
  assert "going on from step" in second.stdout
  assert (path / "digest").read_text().startswith("20 ")
  third = run_module(*command, cwd=project)
  assert "is finished" in third.stdout

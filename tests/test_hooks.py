"""Hooks on a run that is made up: what they write, say and refuse."""

import json
import math
import types

import jax.numpy as jnp
import pytest

from t5jax import budget, hooks, rundir
from t5jax.run import Run
from tests import tiny


@pytest.fixture
def run(tmp_path):
  """A Run over a made-up trainer, with a record."""
  data = types.SimpleNamespace(batch_size=8, feature_lengths={"inputs": 20, "targets": 12})
  trainer = types.SimpleNamespace(data=data, budget=budget.Budget(1000))
  made = Run(trainer, tmp_path, tiny.model(), None, None, None, types.SimpleNamespace(epoch=0), [],
             rundir.Record(tmp_path, step=0), None)
  yield made
  made.record.close()


def step(run, loss, weight=10.0):
  sums = {"loss": (jnp.float32(loss * weight), jnp.float32(weight))}
  run.spend(tiny.batch(), budget.Spent(), sums)


def lines(run):
  return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def test_log_weighs_by_tokens_and_starts_a_new_window(run):
  log = hooks.Log(every=2)
  step(run, 4.0, weight=30)
  step(run, 8.0, weight=10)
  log(run)
  step(run, 2.0)
  log(run)
  first, second = lines(run)
  assert first["step"] == 2 and first["loss"] == pytest.approx(5.0)
  assert second["step"] == 3 and second["loss"] == pytest.approx(2.0)
  assert second["tokens"] == 3 * 8 * (20 + 12) and second["examples"] == 24
  assert second["tokens_per_second"] > 0


def test_log_warns_once_about_many_repeats(run, capsys):
  log = hooks.Log(every=1)
  run.trainer.budget = budget.Budget(20)
  for _ in range(4):
    step(run, 4.0)
    run.data.epoch = 3
    log(run)
  assert capsys.readouterr().out.count("the data will be seen about") == 1


def test_window_survives_a_checkpoint(run):
  step(run, 4.0)
  saved = json.loads(json.dumps(run.host_state()))
  step(run, 6.0)
  hooks.Log(every=1)(run)
  straight = lines(run)[-1]["loss"]
  run.spent = budget.Spent()
  run.restore_host_state(saved)
  step(run, 6.0)
  hooks.Log(every=1)(run)
  assert lines(run)[-1]["loss"] == straight
  assert run.spent.steps == 2


@pytest.mark.parametrize("loss", [math.nan, math.inf, 7.5])
def test_divergence_stops_the_run(run, loss):
  run.checkpoints = types.SimpleNamespace(latest_step=lambda: 40)
  guard = hooks.StopOnDivergence(every=1, max_increase=2.0)
  for good in (6.0, 5.0, 6.9):
    step(run, good)
    guard(run)
    run.window = {}
  step(run, loss)
  with pytest.raises(hooks.TrainingDiverged, match="step 4.*5.000 at best.*checkpoint: 40"):
    guard(run)


def test_record_cuts_off_what_came_after_the_checkpoint(tmp_path):
  record = rundir.Record(tmp_path, step=0)
  for i in (1, 2, 3):
    record.write(i, {"x": float(i)})
  record.close()
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write('{"step": 4, "x"')  # The process was killed here.
  record = rundir.Record(tmp_path, step=2)
  record.write(3, {"x": 30.0})
  record.close()
  rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert rows == [{"step": 1, "x": 1.0}, {"step": 2, "x": 2.0}, {"step": 3, "x": 30.0}]


def test_a_finished_run_is_not_recorded_twice(tmp_path):
  for _ in range(2):
    record = rundir.Record(tmp_path, step=5)
    record.write(5, {"eval/loss": 2.0})
    record.close()
  assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_profile_of_steps_that_never_came_is_said(run, capsys):
  hook = hooks.Profile(100, 200)
  for status in ("running", "done"):
    run.status = status
    hook(run)
  assert "no profile, since no step from 100 to 200 was done" in capsys.readouterr().out


def test_when_hooks_are_due(run):
  periodic, final = hooks.Evaluate(every=2), hooks.Evaluate(every=None)
  step(run, 1.0)
  assert not hooks.is_due(periodic, run) and not hooks.is_due(final, run)
  step(run, 1.0)
  assert hooks.is_due(periodic, run) and not hooks.is_due(final, run)
  run.status = "stopped"
  assert hooks.is_due(hooks.Save(every=1000), run) and not hooks.is_due(final, run)
  run.status = "done"
  assert hooks.is_due(final, run)


def test_tokens_leave_padding_out(run):
  batch = tiny.batch(lengths=[1] * 8)
  batch["encoder_input_tokens"][:, 5:] = 0
  run.spend(batch, budget.Spent(), {})
  assert run.spent.tokens == 8 * (5 + 1)

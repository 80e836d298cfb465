"""Schedules at the points of their recipes, and what they refuse."""

import math

import pytest

from t5jax import schedules

STEPS = 65_536
EVERY = [
    schedules.constant(STEPS, 1000), schedules.linear(STEPS, 1000),
    schedules.cosine(STEPS, 1000, warmup_start=0.0), schedules.warmup_stable_decay(STEPS, 1000),
    schedules.one_cycle(STEPS), schedules.triangle(STEPS), schedules.triangle(STEPS, start=0.0),
    schedules.inverse_sqrt(STEPS), schedules.inverse_sqrt_nanot5(STEPS)]


def at(schedule, step):
  return schedule(step / STEPS)


def test_cosine_is_nanot5s():
  schedule = schedules.cosine(STEPS, 10_000)
  for step, rate in ((0, 1e-2), (5_000, 1.5e-2), (10_000, 2e-2),
                     ((10_000 + STEPS) / 2, (2e-2 + 1e-5) / 2), (STEPS, 1e-5)):
    assert 2e-2 * at(schedule, step) == pytest.approx(rate)


def test_cosine_has_the_floor_of_no_train_no_gain():
  assert at(schedules.cosine(STEPS, 10_000, final=1e-5), STEPS) == pytest.approx(1e-5)


def test_inverse_sqrt_is_t5xs():
  schedule = schedules.inverse_sqrt(STEPS)
  for step in (0, 10_000, 40_000):
    assert 1e-2 * at(schedule, step) == pytest.approx(1 / math.sqrt(max(step, 10_000)))


@pytest.mark.parametrize("peak", [1e-2, 2e-2])
def test_inverse_sqrt_nanot5(peak):
  schedule = schedules.inverse_sqrt_nanot5(STEPS, peak=peak)
  for step in (0, 100, 9_999, 40_000):
    assert peak * at(schedule, step) == pytest.approx(min(peak, 1 / math.sqrt(max(step, 1))))
  assert peak * at(schedule, 58_983) == pytest.approx(4.1175e-3, rel=1e-4)
  assert peak * at(schedule, (58_983 + STEPS) / 2) == pytest.approx(4.1175e-3 / 2, rel=1e-4)
  assert at(schedule, STEPS) == pytest.approx(0, abs=1e-12)


def test_linear_and_constant():
  linear = schedules.linear(STEPS, warmup_steps=100, final=0.1)
  for step, multiplier in ((50, 0.5), (100, 1.0), ((100 + STEPS) / 2, 0.55), (STEPS, 0.1)):
    assert at(linear, step) == pytest.approx(multiplier)
  constant = schedules.constant(STEPS, warmup_steps=10, warmup_start=0.5)
  for step, multiplier in ((0, 0.5), (5, 0.75), (10, 1.0), (STEPS, 1.0)):
    assert at(constant, step) == pytest.approx(multiplier)


@pytest.mark.parametrize("decay, midway", [("1-sqrt", 1 - math.sqrt(0.5)), ("linear", 0.5)])
def test_warmup_stable_decay(decay, midway):
  schedule = schedules.warmup_stable_decay(10_000, 1000, decay_fraction=0.1, decay=decay)
  for step, multiplier in ((500, .5), (1000, 1), (5000, 1), (9000, 1), (9500, midway), (10_000, 0)):
    assert schedule(step / 10_000) == pytest.approx(multiplier, abs=1e-12)
  schedule = schedules.warmup_stable_decay(10_000, 1000, decay=decay, final=0.2)
  assert schedule(0.8) == 1 and schedule(0.9) == pytest.approx(0.2 + 0.8 * midway)
  assert schedule(1.0) == pytest.approx(0.2)


def test_crammings():
  """Against the formulas of Cramming's code, which are in p alone."""
  pairs = [(schedules.one_cycle(STEPS), lambda p: min(2 * p, 2 - 2 * p)),
           (schedules.triangle(STEPS), lambda p: min(0.25 + p, 4 * (1 - p))),
           (schedules.triangle(STEPS, start=0.5), lambda p: min(0.5 + 2 / 3 * p, 4 * (1 - p)))]
  for schedule, formula in pairs:
    for p in (1e-3, 0.25, 0.5, 0.6, 0.75, 0.9, 1.0):
      assert schedule(p) == pytest.approx(formula(p), abs=1e-12)
  assert [schedules.triangle(STEPS)(p) for p in (0, 0.75, 1)] == [0.25, 1, 0]


@pytest.mark.parametrize("schedule", EVERY)
def test_no_update_is_without_effect(schedule):
  """Case: a rate of 0 at step 0, and in the report of the first logging period."""
  assert 0 < at(schedule, 0) <= at(schedule, 1)
  assert all(at(schedule, step) > 0 for step in range(0, STEPS, 100))
  assert at(schedule, STEPS - 1) > 0


@pytest.mark.parametrize("schedule", EVERY)
def test_beyond_the_budget_nothing_turns_negative(schedule):
  assert schedule(1.01) >= 0


@pytest.mark.parametrize("make, message", [
    (lambda: schedules.cosine(100, 100), "cosine.warmup_steps = 100.*fewer than the run's 100"),
    (lambda: schedules.constant(100, 101), "constant.warmup_steps = 101"),
    (lambda: schedules.linear(100, 101), "linear.warmup_steps = 101"),
    (lambda: schedules.inverse_sqrt(100, 101), "inverse_sqrt.warmup_steps = 101.*at most"),
    (lambda: schedules.warmup_stable_decay(100, 81), "warmup_stable_decay.warmup_steps = 81.*80"),
    (lambda: schedules.warmup_stable_decay(100, decay="cosine"), "decay = 'cosine'.*'1-sqrt'"),
    (lambda: schedules.warmup_stable_decay(100, decay_fraction=1), "decay_fraction = 1 .*< 1"),
    (lambda: schedules.triangle(100, peak_at=1), "triangle.peak_at"),
    (lambda: schedules.one_cycle("ten"), "one_cycle.total_steps = 'ten'"),
    (lambda: schedules.triangle("ten"), "triangle.total_steps = 'ten'"),
    (lambda: schedules.linear(100, final=1.5), "linear.final"),
    (lambda: schedules.constant(0), "constant.total_steps"),
    (lambda: schedules.inverse_sqrt("x"), "inverse_sqrt.total_steps"),
    (lambda: schedules.inverse_sqrt_nanot5(100, peak=0), "inverse_sqrt_nanot5.peak"),
    (lambda: schedules.cosine(100, 10, warmup_start=2), "cosine.warmup_start")])
def test_impossible_settings_are_refused_by_name(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_inverse_sqrt_may_be_flat_throughout():
  schedule = schedules.inverse_sqrt(10_000, 10_000)
  assert schedule(0) == schedule(1) == 1

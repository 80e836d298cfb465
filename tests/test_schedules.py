"""Schedules at the points where they are known, and what they refuse."""

import math

import pytest

from t5jax import schedules

STEPS = 65_536


def at(schedule, step):
  return schedule(step / STEPS)


def test_cosine_is_nanot5s():
  schedule = schedules.cosine(2e-2, STEPS, 10_000)
  assert at(schedule, 0) == pytest.approx(1e-2)
  assert at(schedule, 5_000) == pytest.approx(1.5e-2)
  assert at(schedule, 10_000) == pytest.approx(2e-2)
  middle = (10_000 + STEPS) / 2
  assert at(schedule, middle) == pytest.approx((2e-2 + 1e-5) / 2)
  assert at(schedule, STEPS) == pytest.approx(1e-5)


def test_inverse_sqrt_is_t5xs():
  schedule = schedules.inverse_sqrt(STEPS)
  assert at(schedule, 0) == at(schedule, 10_000) == pytest.approx(1e-2)
  assert at(schedule, 40_000) == pytest.approx(5e-3)


def test_inverse_sqrt_nanot5():
  schedule = schedules.inverse_sqrt_nanot5(STEPS)
  assert at(schedule, 0) == at(schedule, 9_999) == pytest.approx(1e-2)
  assert at(schedule, 40_000) == pytest.approx(1 / math.sqrt(40_000))
  assert at(schedule, 58_983) == pytest.approx(4.1175e-3, rel=1e-4)
  assert at(schedule, STEPS) == pytest.approx(0, abs=1e-12)


def test_linear_and_constant():
  linear = schedules.linear(1.0, STEPS, warmup_steps=100, final=0.1)
  assert at(linear, 0) == 0 and at(linear, 50) == pytest.approx(0.5)
  assert at(linear, 100) == pytest.approx(1.0) and at(linear, STEPS) == pytest.approx(0.1)
  constant = schedules.constant(0.3, STEPS, warmup_steps=10, warmup_start=0.5)
  assert at(constant, 0) == pytest.approx(0.15)
  assert at(constant, 10) == at(constant, STEPS) == 0.3


@pytest.mark.parametrize("make, name", [
    (lambda: schedules.cosine(2e-2, 100, 100), "cosine.warmup_steps"),
    (lambda: schedules.linear(-1.0, 100), "linear.learning_rate"),
    (lambda: schedules.constant(0.1, 0), "constant.total_steps"),
    (lambda: schedules.inverse_sqrt("x"), "inverse_sqrt.total_steps"),
    (lambda: schedules.cosine(0.1, 100, 10, warmup_start=2), "cosine.warmup_start")])
def test_impossible_settings_are_refused_by_name(make, name):
  with pytest.raises(ValueError, match=name):
    make()

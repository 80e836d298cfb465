"""Progress in any unit."""

import pytest

from t5jax.budget import Budget, Spent


@pytest.mark.parametrize("unit, progress", [
    ("steps", 0.02), ("tokens", 0.5), ("examples", 0.016), ("seconds", 0.0125)])
def test_progress_is_the_share_spent(unit, progress):
  spent = Spent(steps=20, tokens=500, examples=16, seconds=12.5)
  assert Budget(1000, unit).progress(spent) == pytest.approx(progress)


def test_counters_add_up_exactly():
  """Beyond 2**24, where float32 would lose tokens."""
  spent = Spent(tokens=2 ** 53) + Spent(steps=1, tokens=1)
  assert spent == Spent(steps=1, tokens=2 ** 53 + 1)


@pytest.mark.parametrize("arguments, message", [
    ((0,), "Budget.amount"), (("ten",), "Budget.amount = 'ten'"), ((True,), "Budget.amount"),
    ((2.5,), "Budget.amount = 2.5.*whole number of steps"),
    ((10, "epochs"), "Budget.unit = 'epochs'.*'steps'")])
def test_wrong_budgets(arguments, message):
  with pytest.raises(ValueError, match=message):
    Budget(*arguments)

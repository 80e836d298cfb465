"""What a run may spend and what it has spent, in any unit; progress is their ratio."""

import dataclasses
from typing import Literal

from t5jax.settings import POSITIVE, SettingError, check_settings


@dataclasses.dataclass(frozen=True)
class Spent:
  """Counters of what a run has used since its step 0; plain numbers, saved with the state.

  Attributes:
    steps: optimizer updates.
    tokens: real encoder input and decoder target tokens, padding not counted.
    examples: rows of the batches.
    seconds: wall clock in the loop, compilation and evaluation included.
  """

  steps: int = 0
  tokens: int = 0
  examples: int = 0
  seconds: float = 0.0

  def __add__(self, other):
    return Spent(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))


@dataclasses.dataclass(frozen=True)
class Budget:
  """The length of a run: `amount` of `unit`.

  Attributes:
    amount: how many.
    unit: "steps", "tokens", "examples" or "seconds".
  """

  amount: float
  unit: Literal["steps", "tokens", "examples", "seconds"] = "steps"

  def __post_init__(self):
    check_settings(self, amount=POSITIVE)
    if self.unit != "seconds" and self.amount % 1:
      raise SettingError("Budget.amount", self.amount, f"a whole number of {self.unit}")

  def progress(self, spent):
    """Returns the share spent, 1.0 or more when the run is over."""
    return getattr(spent, self.unit) / self.amount

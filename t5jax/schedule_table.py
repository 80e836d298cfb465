"""The learning rates of a run as a table and as a picture, without training."""

import math
import pathlib

PARTS = 1000  # Of a budget that is not counted in steps.
MAX_POINTS = 500_000  # Python calls a schedule about a million times a second.
BAR = 40  # Characters.


def learning_rates(learning_rate, schedule, budget):
  """Returns (positions, rates): what is spent before an update, and that update's learning rate.

  Args:
    learning_rate: what the schedule multiplies.
    schedule: a function of progress.
    budget: budget.Budget. In steps, the positions are those of all updates, or evenly of some if
      there are very many; in another unit, even parts of it and its end.
  """
  if budget.unit == "steps":
    last = int(budget.amount) - 1
    positions = [*range(0, last, 1 + last // MAX_POINTS), last]
  else:
    positions = [budget.amount * part / PARTS for part in range(PARTS + 1)]
  return positions, [float(learning_rate * schedule(p / budget.amount)) for p in positions]


def table(learning_rate, schedule, budget):
  """Returns lines of text: position, share of the budget, learning rate, a bar in proportion.

  A line each for the first and last position, every tenth, the powers of ten in steps, and the ends
  of the stretch at the peak.
  """
  positions, rates = learning_rates(learning_rate, schedule, budget)
  peak = max(rates)
  lines = [f"{budget.unit:>17}  progress  learning rate"]
  for i in _chosen(rates, peak, budget.unit):
    bar = "#" * round(BAR * rates[i] / peak) if peak else ""
    progress = positions[i] / budget.amount
    lines.append(f"{positions[i]:>17,.12g}  {progress:8.1%}  {rates[i]:13.4e}  {bar}".rstrip())
  return "\n".join(lines)


def _chosen(rates, peak, unit):
  """Indices of the lines of a table."""
  last = len(rates) - 1
  chosen = {math.ceil(last * tenth / 10) for tenth in range(11)}
  if unit == "steps":
    chosen.update(10**power for power in range(len(str(last))) if 10**power < last)
  # Where two branches of a schedule meet they differ by rounding.
  at_peak = [i for i, rate in enumerate(rates) if rate >= peak * (1 - 1e-12)]
  return sorted(chosen | {at_peak[0], at_peak[-1]})


def plot(learning_rate, schedule, budget, path):
  """Draws the learning rate over the budget into a picture, in the format that its name ends in.

  Raises:
    ValueError: it cannot be written.
  """
  from matplotlib.figure import Figure

  if pathlib.Path(path).is_dir():
    raise ValueError(f"{path} cannot be written: it is a folder.")
  figure = Figure(figsize=(7, 3.5), layout="constrained")
  axes = figure.subplots()
  axes.plot(*learning_rates(learning_rate, schedule, budget), color="#4878a8")
  axes.set(xlabel=budget.unit, ylabel="learning rate", ylim=(0, None))
  axes.grid(alpha=0.3)
  try:
    figure.savefig(path, dpi=120)
  except (OSError, ValueError) as error:  # No such folder; no such format.
    reason = getattr(error, "strerror", None) or error
    raise ValueError(f"{path} cannot be written: {reason}.") from error

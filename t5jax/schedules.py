"""Schedules: progress through the budget, from 0 to 1, to a multiplier of the learning rate.

Every factory returns a function of progress. `total_steps` is the length of the whole run in
updates, `warmup_steps` is in the same unit; progress * total_steps is the number t of updates done
before the one that is about to happen. Where the budget has another unit, total_steps is any
number that stands for the whole. The highest value of each is 1: the learning rate is its peak.

No schedule starts at 0. A warm-up from nothing would waste its first update: that one gets the
multiplier of the second, 1 / warmup_steps.
"""

import math

from t5jax.settings import (AT_LEAST_ONE, DECAY, FRACTION, NON_NEGATIVE, POSITIVE, RATE,
                            SettingError, check_choice, check_numbers)


def constant(total_steps, warmup_steps=0, warmup_start=0.0):
  """Returns a schedule that stays at 1 after a linear warm-up.

  Args:
    total_steps: length of the run in updates.
    warmup_steps: updates of linear warm-up; fewer than total_steps.
    warmup_start: the multiplier at which the warm-up starts.
  """
  return _with_warmup("constant", lambda t: 1.0, total_steps, warmup_steps, warmup_start)


def linear(total_steps, warmup_steps=0, warmup_start=0.0, final=0.0):
  """Returns warm-up, then a straight line from 1 to `final` at the run's end."""
  return _line("linear", total_steps, warmup_steps, warmup_start, final)


def cosine(total_steps, warmup_steps, warmup_start=0.5, final=5e-4):
  """Returns nanoT5's schedule: warm-up from half, then half a cosine down to `final`.

  nanoT5 (arXiv:2309.02373): total_steps 65536, warmup_steps 10000, from 2e-2 to 1e-5, which is
  5e-4 of it. No Train No Gain (arXiv:2307.06440): `final` 1e-5.
  """
  check_numbers("cosine", final=(final, FRACTION))

  def decay(t):
    done = (t - warmup_steps) / (total_steps - warmup_steps)
    return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2

  return _with_warmup("cosine", decay, total_steps, warmup_steps, warmup_start)


def warmup_stable_decay(total_steps, warmup_steps=0, warmup_start=0.0, decay_fraction=0.2,
                        decay="1-sqrt", final=0.0):
  """Returns warm-up, 1 for most of the run, and a decay to `final` over its last part.

  MiniCPM (arXiv:2404.06395) names it and decays over the last tenth. The form of the decay and the
  fifth of the run are those of arXiv:2405.18392, where "1-sqrt" ends lower than "linear".

  Args:
    total_steps: length of the run in updates.
    warmup_steps: updates of linear warm-up; they end before the decay begins.
    warmup_start: the multiplier at which the warm-up starts.
    decay_fraction: the share of the run that decays, above 0 and below 1.
    decay: "1-sqrt" or "linear" in the share of the decay that is done.
    final: the multiplier at the end.
  """
  owner = "warmup_stable_decay"
  check_choice(f"{owner}.decay", decay, ("1-sqrt", "linear"))
  check_numbers(owner, decay_fraction=(decay_fraction, DECAY), final=(final, FRACTION),
                total_steps=(total_steps, AT_LEAST_ONE))
  turn = (1 - decay_fraction) * total_steps
  exponent = 0.5 if decay == "1-sqrt" else 1.0

  def after(t):
    done = max(t - turn, 0) / (total_steps - turn)
    return 1 - (1 - final) * done**exponent

  schedule = _with_warmup(owner, after, total_steps, warmup_steps, warmup_start)
  if warmup_steps > turn:
    raise SettingError(f"{owner}.warmup_steps", warmup_steps,
                       f"at most the {turn:.0f} steps before the decay")
  return schedule


def one_cycle(total_steps):
  """Returns Cramming's one-cycle schedule (arXiv:2212.14034): up from 0 to 1 at half, down to 0."""
  check_numbers("one_cycle", total_steps=(total_steps, AT_LEAST_ONE))
  return _line("one_cycle", total_steps, total_steps / 2, 0.0, 0.0)


def triangle(total_steps, start=0.25, peak_at=0.75):
  """Returns Cramming's triangle: from `start` up to 1, then down to 0, both in straight lines.

  Args:
    total_steps: length of the run in updates.
    start: the first multiplier: 0.25 in Cramming's final recipe, 0.5 in an earlier one.
    peak_at: the share of the run at which it is 1, above 0 and below 1.
  """
  check_numbers("triangle", total_steps=(total_steps, AT_LEAST_ONE), start=(start, FRACTION),
                peak_at=(peak_at, DECAY))
  return _line("triangle", total_steps, peak_at * total_steps, start, 0.0)


def inverse_sqrt(total_steps, warmup_steps=10_000):
  """Returns T5X's schedule: 1 up to `warmup_steps`, then falling as 1 / sqrt(t).

  T5X's own 1 / sqrt(max(t, 10000)) is this at a learning rate of 1e-2. A run may consist of the flat
  part alone.
  """
  _check_steps("inverse_sqrt", total_steps, warmup_steps, may_fill_the_run=True)
  flat = max(warmup_steps, 1)
  return lambda progress: math.sqrt(flat / max(progress * total_steps, flat))


def inverse_sqrt_nanot5(total_steps, peak=1e-2, decay_fraction=0.1):
  """Returns nanoT5's legacy schedule: min(peak, 1 / sqrt(t)) / peak, at last linear to 0.

  With `peak` as the learning rate, that is min(peak, 1 / sqrt(t)) as in nanoT5. No warm-up. The
  line runs over the last `decay_fraction` of the run.
  """
  check_numbers("inverse_sqrt_nanot5", total_steps=(total_steps, AT_LEAST_ONE),
                peak=(peak, POSITIVE), decay_fraction=(decay_fraction, RATE))
  turn = math.ceil((1 - decay_fraction) * total_steps)

  def schedule(progress):
    t = min(progress, 1) * total_steps
    if t < turn:
      return min(1, 1 / (peak * math.sqrt(max(t, 1))))
    return min(1, 1 / (peak * math.sqrt(turn))) * (total_steps - t) / max(total_steps - turn, 1)

  return schedule


def _line(owner, total_steps, warmup_steps, warmup_start, final):
  """Warm-up, then a straight line down to `final`."""
  check_numbers(owner, final=(final, FRACTION))

  def decay(t):
    return 1 - (1 - final) * (t - warmup_steps) / (total_steps - warmup_steps)

  return _with_warmup(owner, decay, total_steps, warmup_steps, warmup_start)


def _with_warmup(owner, after, total_steps, warmup_steps, warmup_start):
  check_numbers(owner, warmup_start=(warmup_start, FRACTION))
  _check_steps(owner, total_steps, warmup_steps)

  def schedule(progress):
    t = min(progress, 1) * total_steps  # Beyond the budget nothing turns negative.
    if t < warmup_steps:
      ramp = warmup_start + (1 - warmup_start) * t / warmup_steps
      return ramp or 1 / max(warmup_steps, 1)
    return after(t)

  return schedule


def _check_steps(owner, total_steps, warmup_steps, may_fill_the_run=False):
  check_numbers(owner, total_steps=(total_steps, AT_LEAST_ONE),
                warmup_steps=(warmup_steps, NON_NEGATIVE))
  if warmup_steps > total_steps or (warmup_steps == total_steps and not may_fill_the_run):
    limit = f"{'at most' if may_fill_the_run else 'fewer than'} the run's {total_steps} steps"
    raise SettingError(f"{owner}.warmup_steps", warmup_steps, limit)

"""Schedules: progress through the budget, in [0, 1), to a learning rate.

Every factory takes `total_steps`, the length of the whole run in updates, and `warmup_steps` in the
same unit; progress * total_steps is the number of updates done before the one that is about to
happen. Where the budget is not counted in steps, total_steps only sets the resolution.
"""

import math

from t5jax.settings import AT_LEAST_ONE, FRACTION, NON_NEGATIVE, POSITIVE, SettingError, check_numbers


def constant(learning_rate, total_steps, warmup_steps=0, warmup_start=0.0):
  """Returns a schedule that holds `learning_rate` after a linear warm-up.

  Args:
    learning_rate: the value held.
    total_steps: length of the run in updates.
    warmup_steps: updates of linear warm-up; fewer than total_steps.
    warmup_start: what fraction of `learning_rate` the warm-up starts from.
  """
  return _with_warmup("constant", lambda t: learning_rate, learning_rate, total_steps,
                      warmup_steps, warmup_start)


def linear(learning_rate, total_steps, warmup_steps=0, warmup_start=0.0, final=0.0):
  """Returns warm-up, then a straight line from `learning_rate` to `final` at the run's end."""
  check_numbers("linear", final=(final, NON_NEGATIVE))

  def decay(t):
    done = (t - warmup_steps) / (total_steps - warmup_steps)
    return learning_rate + (final - learning_rate) * done

  return _with_warmup("linear", decay, learning_rate, total_steps, warmup_steps, warmup_start)


def cosine(learning_rate, total_steps, warmup_steps, warmup_start=0.5, final=1e-5):
  """Returns nanoT5's schedule: warm-up from half, then half a cosine down to `final`.

  `final` is an absolute learning rate. nanoT5 (arXiv:2309.02373): learning_rate 2e-2, total_steps
  65536, warmup_steps 10000.
  """
  check_numbers("cosine", final=(final, NON_NEGATIVE))

  def decay(t):
    done = (t - warmup_steps) / (total_steps - warmup_steps)
    return final + (learning_rate - final) * (1 + math.cos(math.pi * done)) / 2

  return _with_warmup("cosine", decay, learning_rate, total_steps, warmup_steps, warmup_start)


def inverse_sqrt(total_steps, scale=1.0, warmup_steps=10_000):
  """Returns T5X's schedule: scale / sqrt(max(t, warmup_steps)), flat during the warm-up."""
  _check("inverse_sqrt", scale, total_steps, warmup_steps, 0.0, name="scale")
  return lambda progress: scale / math.sqrt(max(progress * total_steps, warmup_steps, 1))


def inverse_sqrt_nanot5(total_steps, peak=1e-2, decay_fraction=0.1):
  """Returns nanoT5's legacy schedule: min(peak, 1 / sqrt(t)), at last linear to 0.

  The line runs over the last `decay_fraction` of the run. No warm-up, and no other scale.
  """
  check_numbers("inverse_sqrt_nanot5", peak=(peak, POSITIVE), total_steps=(total_steps, AT_LEAST_ONE),
                decay_fraction=(decay_fraction, FRACTION))
  turn = math.ceil((1 - decay_fraction) * total_steps)

  def schedule(progress):
    t = progress * total_steps
    if t < turn:
      return min(peak, 1 / math.sqrt(max(t, 1)))
    return min(peak, 1 / math.sqrt(turn)) * (total_steps - t) / (total_steps - turn)

  return schedule


def _with_warmup(owner, after, learning_rate, total_steps, warmup_steps, warmup_start):
  _check(owner, learning_rate, total_steps, warmup_steps, warmup_start)

  def schedule(progress):
    t = progress * total_steps
    if t < warmup_steps:
      return learning_rate * (warmup_start + (1 - warmup_start) * t / warmup_steps)
    return after(t)

  return schedule


def _check(owner, learning_rate, total_steps, warmup_steps, warmup_start, name="learning_rate"):
  check_numbers(owner, **{name: (learning_rate, POSITIVE)}, total_steps=(total_steps, AT_LEAST_ONE),
                warmup_steps=(warmup_steps, NON_NEGATIVE), warmup_start=(warmup_start, FRACTION))
  if warmup_steps >= total_steps and owner != "inverse_sqrt":
    raise SettingError(f"{owner}.warmup_steps", warmup_steps, f"fewer than the run's {total_steps} steps")

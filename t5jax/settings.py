"""Validation of settings: every wrong value is refused by name before anything expensive starts.

Frozen dataclasses call `check_settings(self, field=range, ...)` from `__post_init__`; the error says
which setting, which value, and what would be valid.
"""

import dataclasses
import difflib
import types
import typing


class SettingError(ValueError):
  """A setting holds a value that cannot work.

  Attributes:
    setting: its name, e.g. `T5Config.num_heads`; config.py adds the gin macro that fed it.
  """

  def __init__(self, setting, value, valid):
    end = "" if valid.endswith("?") else "."
    super().__init__(f"{setting} = {value!r} is not valid: expected {valid}{end}")
    self.setting = setting


@dataclasses.dataclass(frozen=True)
class Range:
  """Closed range of finite numbers; `None` is no bound. `open_low` and `open_high` exclude the ends."""

  low: float | None = None
  high: float | None = None
  open_low: bool = False
  open_high: bool = False

  def __contains__(self, value):
    if self.low is not None and (value <= self.low if self.open_low else value < self.low):
      return False
    if self.high is not None and (value >= self.high if self.open_high else value > self.high):
      return False
    return abs(value) < float("inf")  # Neither infinity nor NaN is in any range.

  def __str__(self):
    parts = []
    if self.low is not None:
      parts.append(f"{'>' if self.open_low else '>='} {self.low}")
    if self.high is not None:
      parts.append(f"{'<' if self.open_high else '<='} {self.high}")
    return " and ".join(parts)


POSITIVE = Range(low=0, open_low=True)
NON_NEGATIVE = Range(low=0)
AT_LEAST_ONE = Range(low=1)
FRACTION = Range(low=0, high=1)
RATE = Range(low=0, high=1, open_high=True)
DECAY = Range(low=0, high=1, open_low=True, open_high=True)


def nearest(name, candidates):
  """Returns " Did you mean 'x'?" for the candidate that begins with `name` or is closest to it, or ""."""
  candidates = list(map(str, candidates))
  longer = [candidate for candidate in candidates if name and candidate.startswith(name)]
  close = longer or difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
  return f" Did you mean {close[0]!r}?" if close else ""


def check_settings(settings, **ranges):
  """Checks each field of a dataclass against its annotated type and its range.

  Args:
    settings: a dataclass instance, all of whose fields carry type annotations.
    **ranges: for a field, a `Range` or a container of the valid values. Optional fields may be
      None whatever their range.

  Raises:
    SettingError: names the first field that does not fit.
  """
  owner = type(settings).__name__
  hints = typing.get_type_hints(type(settings))
  for field in dataclasses.fields(settings):
    value = getattr(settings, field.name)
    setting = f"{owner}.{field.name}"
    if not _has_type(value, hints[field.name]):
      raise SettingError(setting, value, _describe(hints[field.name], ranges.get(field.name)))
    allowed = ranges.get(field.name)
    if allowed is not None and value is not None and value not in allowed:
      raise SettingError(setting, value, _describe(hints[field.name], allowed))


def check_optimizer(setting, optimizer):
  """Raises SettingError unless `optimizer` is a function of the learning rate that gives Optax's form."""
  if not callable(optimizer) or not hasattr(optimizer(0.0), "update"):
    raise SettingError(setting, getattr(optimizer, "__name__", optimizer),
                       "a function of the learning rate: @optim.adamw, but @optim.grouped() and "
                       "@optim.quantized()")


def check_numbers(owner, **values_and_ranges):
  """Checks the numeric arguments of a function: check_numbers("adafactor", beta1=(0.9, DECAY)).

  None passes: it stands for an optional number. Raises SettingError.
  """
  for name, (value, allowed) in values_and_ranges.items():
    if value is not None and not (_has_type(value, float) and value in allowed):
      raise SettingError(f"{owner}.{name}", value, f"a number {allowed}")


def check_choice(setting, value, choices):
  """Raises SettingError, with the nearest choice, unless `value` is one of `choices`."""
  if value not in choices:
    listed = ", ".join(repr(c) for c in choices)
    raise SettingError(setting, value, f"one of {listed}.{nearest(str(value), choices)}".rstrip("."))


def _has_type(value, hint):
  origin = typing.get_origin(hint)
  if hint is typing.Any:
    return True
  if origin in (typing.Union, types.UnionType):
    return any(_has_type(value, option) for option in typing.get_args(hint))
  if origin is typing.Literal:
    return value in typing.get_args(hint)
  if origin is not None:  # list[int], tuple[str, ...], Callable[...]: the container alone.
    return isinstance(value, origin) or (origin is tuple and isinstance(value, list))
  if hint is None or hint is type(None):
    return value is None
  if hint is float:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
  if hint is int:
    return isinstance(value, int) and not isinstance(value, bool)
  return isinstance(value, hint)


def _describe(hint, allowed):
  options = [_type_name(o) for o in typing.get_args(hint)] if typing.get_origin(hint) in (
      typing.Union, types.UnionType) else [_type_name(hint)]
  text = " or ".join(options)
  if isinstance(allowed, Range):
    return f"{text} {allowed}"
  return f"one of {', '.join(map(repr, allowed))}" if allowed else text


def _type_name(hint):
  if hint is type(None):
    return "None"
  if typing.get_origin(hint) is typing.Literal:
    return "one of " + ", ".join(map(repr, typing.get_args(hint)))
  return getattr(hint, "__name__", str(hint))

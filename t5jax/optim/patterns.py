"""Parameters chosen by their path: regular expressions over "encoder/layers/mlp/wo/kernel".

A pattern may match anywhere in the path: `decoder` means every parameter below a `decoder`; `^` and
`$` tie it to the ends. A pattern that matches nothing is an error, most often a slip of the pen.
"""

import re

import jax
import optax

from t5jax.optim.matrices import path_name, tree_map
from t5jax.settings import SettingError, nearest

# Norm scales and relative position tables: what no recipe for T5 decays.
NOT_DECAYED = (r"\bscale$", r"\brel_embedding$")


def matches(path, patterns):
  """True if one of `patterns` is found in the name of the tree path."""
  return any(re.search(pattern, path_name(path)) for pattern in patterns)


def check_patterns(setting, patterns):
  """Raises SettingError unless `patterns` is a list of regular expressions."""
  if not isinstance(patterns, (list, tuple)):
    raise SettingError(setting, patterns, "a list of regular expressions over parameter paths")
  for pattern in patterns:
    try:
      re.compile(pattern)
    except (re.error, TypeError) as error:
      raise SettingError(setting, pattern, f"a regular expression ({error})") from error


def check_all_match(setting, patterns, params):
  """Raises SettingError for a pattern that no parameter matches, with the nearest part of a path.

  `params` may be what `optax.masked` leaves of a tree: the parameters it hides count as well.
  """
  is_hidden = lambda x: isinstance(x, optax.MaskedNode)
  paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params, is_leaf=is_hidden)]
  for pattern in patterns:
    if not any(matches(path, [pattern]) for path in paths):
      hint = nearest(pattern, _parts(map(path_name, paths)))
      raise SettingError(setting, pattern, f"a pattern that matches a parameter.{hint}".rstrip("."))


def decay_mask(owner, exclude):
  """Returns a function of the parameters to a tree of bools: True where weight decay applies.

  Args:
    owner: the optimizer, whose setting `weight_decay_exclude` an error names.
    exclude: patterns of what is exempt. All but the default ones have to match something.
  """
  setting = f"{owner}.weight_decay_exclude"
  check_patterns(setting, exclude)

  def mask(params):
    check_all_match(setting, [p for p in exclude if p not in NOT_DECAYED], params)
    return tree_map(lambda path, _: not matches(path, exclude), params)

  return mask


def _parts(names):
  """All runs of whole steps of the paths, which is what a pattern is usually meant to be."""
  parts = set()
  for steps in (name.split("/") for name in names):
    parts |= {"/".join(steps[i:j]) for i in range(len(steps)) for j in range(i + 1, len(steps) + 1)}
  return sorted(parts)

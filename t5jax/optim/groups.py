"""Parameters apart from the rest: frozen ones, and others with learning rates of their own.

    trainer.Trainer.optimizer = @optim.grouped()
    optim.grouped:
      optimizer = @optim.adafactor
      frozen = ["^encoder/", "^token_embedder/"]
      learning_rates = {"^logits_dense/": 0.1}

Frozen parameters have no optimizer state and never change. Their gradient still counts in the
global norm by which gradients are clipped, since clipping comes before the optimizer.
"""

import functools

import jax
import optax

from t5jax.optim.matrices import path_name, tree_map
from t5jax.optim.patterns import check_all_match, check_patterns, matches
from t5jax.settings import POSITIVE, SettingError, check_numbers, check_optimizer

_FROZEN, _REST = "frozen", "rest"


def grouped(optimizer, frozen=(), learning_rates=None):
  """Returns `optimizer`, a function of the learning rate, for groups of parameters.

  A parameter that two patterns match is an error: which of them was meant cannot be seen.

  Args:
    optimizer: any function of the learning rate that returns an optax transformation. Each group
      gets one of its own, with its own count and whatever else is not per parameter.
    frozen: patterns (see patterns.py) of parameters that do not change.
    learning_rates: {pattern: factor on the learning rate}.

  Raises:
    SettingError: on impossible settings here; on patterns that match nothing, or the same
      parameter, when the state is initialised.
  """
  check_optimizer("grouped.optimizer", optimizer)
  learning_rates = {} if learning_rates is None else learning_rates
  if not isinstance(learning_rates, dict):
    raise SettingError("grouped.learning_rates", learning_rates, "{pattern: factor}")
  check_patterns("grouped.frozen", frozen)
  check_patterns("grouped.learning_rates", list(learning_rates))
  for pattern, factor in learning_rates.items():
    check_numbers("grouped", **{f"learning_rates[{pattern!r}]": (factor, POSITIVE)})
  for pattern in set(frozen) & set(learning_rates):
    raise SettingError("grouped.learning_rates", pattern, "a pattern that grouped.frozen does not have")
  # Patterns would do as labels, but a checkpoint makes folders of labels.
  labels = {**dict.fromkeys(frozen, _FROZEN),
            **{pattern: f"learning_rate_{i}" for i, pattern in enumerate(learning_rates)}}

  def label(path, _):
    found = [pattern for pattern in labels if matches(path, [pattern])]
    if len({labels[pattern] for pattern in found}) > 1:
      raise SettingError("grouped.learning_rates", found[-1], f"a pattern that does not match "
                         f"{path_name(path)} as well, which {found[0]!r} matches")
    return labels[found[0]] if found else _REST

  def label_all(params):
    check_all_match("grouped.frozen", frozen, params)
    check_all_match("grouped.learning_rates", learning_rates, params)
    all_labels = tree_map(label, params)
    if set(jax.tree.leaves(all_labels)) == {_FROZEN}:
      raise SettingError("grouped.frozen", frozen, "patterns that leave something to train")
    return all_labels

  @functools.wraps(optimizer)
  def of_learning_rate(learning_rate):
    groups = {labels[pattern]: optimizer(learning_rate * factor)
              for pattern, factor in learning_rates.items()}
    return optax.partition(
        {_FROZEN: optax.set_to_zero(), _REST: optimizer(learning_rate), **groups}, label_all,
        mask_compatible_extra_args=True)

  return of_learning_rate

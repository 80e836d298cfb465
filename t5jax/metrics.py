"""Metrics are (sum, weight) pairs: they add up over tokens, microbatches, steps and devices.

A mean is taken only when it is logged, so no way of cutting the data into batches changes it.
"""

import math

import jax
import jax.numpy as jnp


def of_tokens(tokens, weights):
  """Returns the weighted sums over one batch.

  Args:
    tokens: {name: float32 [B, L]}.
    weights: float32 [B, L].

  Returns:
    {name: (sum, weight)} of float32 scalars.
  """
  total = jnp.sum(weights)
  return {name: (jnp.sum(value * weights), total) for name, value in tokens.items()}


def single(value):
  """A metric that is one observation: a norm, a rate."""
  return value, jnp.ones([], jnp.float32)


def add(a, b):
  """Adds two metric dicts of the same keys."""
  return jax.tree.map(lambda x, y: x + y, a, b)


def means(totals):
  """{name: (sum, weight)} of numbers -> {name: mean}; a weight of 0 gives NaN."""
  return {name: float(total) / float(weight) if weight else math.nan
          for name, (total, weight) in totals.items()}


def total_on_host(parts):
  """Adds up metric dicts of device scalars in float64: {name: [sum, weight]} of Python floats."""
  totals = {}
  for part in jax.device_get(parts):
    for name, (total, weight) in part.items():
      old = totals.get(name, (0.0, 0.0))
      totals[name] = [old[0] + float(total), old[1] + float(weight)]
  return totals

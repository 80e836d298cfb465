"""In which order the parts of a mixture take turns: at random, in exact proportion, seekable.

Every 100,000 examples hold each part as often as its rate says, up to rounding; within them the
order is random. So where an example comes from is a function of its position alone, and no part
runs ahead by chance.
"""

import functools

import numpy as np

from t5jax.settings import SettingError

BLOCK = 100_000


class Turns:
  """The order of turns of a mixture."""

  def __init__(self, rates, seed):
    """Plans the turns.

    Args:
      rates: sequence of numbers > 0, one for each part, in any unit.
      seed: int >= 0.

    Raises:
      SettingError: a rate is not positive, or so small that a block would not hold the part.
    """
    if not all(isinstance(rate, (int, float)) for rate in rates):
      raise SettingError("rates", list(rates), "numbers > 0")
    rates = np.asarray(rates, float)
    if not (np.isfinite(rates).all() and (rates > 0).all()):
      raise SettingError("rates", rates.tolist(), "numbers > 0")
    self.counts = _apportion(rates / rates.sum())
    if not self.counts.all():
      raise SettingError("rates", rates.tolist(), f"none below 1/{BLOCK:,} of their sum")
    self._seed = seed
    self._block = functools.lru_cache(maxsize=2)(self._make_block)

  def block(self, number):
    """Returns the parts whose turn it is in a block: int64 [BLOCK]."""
    return self._block(int(number))[0]

  def locate(self, positions):
    """Finds what stands at positions of the mixture, each in constant time.

    Args:
      positions: int64 [n], of examples, from 0.

    Returns:
      (part int64 [n], index int64 [n] of the example within its part).
    """
    numbers, slots = np.divmod(np.asarray(positions, np.int64), BLOCK)
    parts, indices = np.empty_like(slots), np.empty_like(slots)
    for number in np.unique(numbers):
      here = numbers == number
      block, turn = self._block(int(number))
      parts[here] = block[slots[here]]
      indices[here] = turn[slots[here]] + number * self.counts[parts[here]]
    return parts, indices

  def first_position(self, part, index):
    """Returns the position of the mixture where example `index` of a part stands."""
    number, turn = divmod(index, int(self.counts[part]))
    return number * BLOCK + int(np.flatnonzero(self.block(number) == part)[turn])

  def _make_block(self, number):
    generator = np.random.Generator(np.random.Philox(key=[self._seed, number]))
    block = generator.permutation(np.repeat(np.arange(len(self.counts)), self.counts))
    turn = np.empty_like(block)
    order = np.argsort(block, kind="stable")
    turn[order] = np.arange(BLOCK) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
    return block, turn


def _apportion(shares):
  """Shares out a block by largest remainders: int64, adding up to BLOCK."""
  exact = shares * BLOCK
  counts = np.floor(exact).astype(np.int64)
  largest = np.argsort(counts - exact, kind="stable")[:BLOCK - counts.sum()]
  counts[largest] += 1
  return counts


def sample(datasets, rates, seed=None):
  """Mixes tf.data datasets by their rates: the `sample_fn` of a seqio.Mixture.

  Args:
    datasets: list of tf.data.Dataset of one element type.
    rates: one for each.
    seed: int; None for 0.

  Returns:
    Dataset that ends where one of the parts has its turn but nothing left.
  """
  import tensorflow as tf

  turns = Turns(rates, int(seed or 0))

  def block(number):
    parts = tf.numpy_function(turns.block, [number], tf.int64, stateful=False)
    return tf.data.Dataset.from_tensor_slices(tf.ensure_shape(parts, [BLOCK]))

  order = tf.data.Dataset.range(np.iinfo(np.int64).max).flat_map(block)
  return tf.data.Dataset.choose_from_datasets(datasets, order, stop_on_empty_dataset=True)

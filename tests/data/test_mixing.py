"""Turns of a mixture: exact shares, the same forwards and sought, equal in tf.data."""

import numpy as np
import pytest

from t5jax.data import mixing
from t5jax.data.permutation import permute
from t5jax.settings import SettingError


def test_rates_hold_exactly_over_a_hundred_thousand():
  rates = np.array([0.6, 0.29, 0.1, 0.009, 0.001])
  parts, _ = mixing.Turns(rates * 17, seed=3).locate(np.arange(100_000))
  counts = np.bincount(parts, minlength=5)
  np.testing.assert_allclose(counts / 100_000, rates, rtol=0.01)


def test_the_parts_advance_one_by_one():
  turns = mixing.Turns([3, 1, 0.5], seed=1)
  parts, indices = turns.locate(np.arange(250_000))
  for part in range(3):
    np.testing.assert_array_equal(indices[parts == part], np.arange((parts == part).sum()))
    assert turns.first_position(part, 12_345) == np.flatnonzero(parts == part)[12_345]
  sought = np.array([249_999, 0, 150_000, 99_999, 100_000])
  np.testing.assert_array_equal(np.stack(turns.locate(sought)), np.stack([parts, indices])[:, sought])


def test_the_order_is_random_and_follows_the_seed():
  first, again, other = (mixing.Turns([1, 1], seed=s).block(0) for s in (1, 1, 2))
  np.testing.assert_array_equal(first, again)
  assert (first != other).any() and (first != mixing.Turns([1, 1], seed=1).block(1)).any()
  # Runs of fair coins: half of 100,000 neighbours differ, with a deviation of 158.
  assert abs((np.diff(first) != 0).sum() - 50_000) < 800


def test_tf_data_takes_the_same_turns():
  import tensorflow as tf

  rates = [5, 2, 1]
  parts = [tf.data.Dataset.range(10**6).map(lambda i, k=k: (tf.constant(k), i)) for k in range(3)]
  mixed = mixing.sample(parts, rates, seed=4).take(3000).as_numpy_iterator()
  found = np.array([(int(k), int(i)) for k, i in mixed])
  expected = np.stack(mixing.Turns(rates, 4).locate(np.arange(3000)), axis=1)
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rates", [[1, 0], [1, -1], [1, float("nan")], [1, 1e-7]])
def test_impossible_rates_are_refused(rates):
  with pytest.raises(SettingError, match="rates"):
    mixing.Turns(rates, 0)


@pytest.mark.parametrize("size", [*range(1, 70), 1000, 65_536, 65_537])
def test_permutations_permute(size):
  order = permute(np.arange(size), size, key=size * 7919)
  np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_permutations_look_random():
  order = permute(np.arange(100_000), 100_000, key=5)
  places = np.arange(100_000)
  assert abs(np.corrcoef(order, places)[0, 1]) < 0.015  # Standard deviation 0.003.
  assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.015
  assert (order == places).sum() < 8  # One fixed point expected.
  assert (order != permute(places, 100_000, key=6)).mean() > 0.999


def test_permutations_reach_far_places_at_once():
  size = 10**12
  found = permute(np.array([0, 1, size - 1]), size, key=1)
  assert len(set(found.tolist())) == 3 and (found >= 0).all() and (found < size).all()

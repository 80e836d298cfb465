"""bfloat16 parameters: that they learn, that they stay where they should, and what is random in them."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from t5jax import optim
from t5jax.optim import precision

LEARNING = ["bfloat16_stochastic", "bfloat16_kahan", "bfloat16_master"]


def train(policy, optimizer, gradient, steps, size=4096, start=1.0):
  """Parameters, all `start`, after `steps` updates with a constant gradient."""
  transformation = precision.keep_parameters(optimizer, policy)
  params = {"w": jnp.full(size, start, precision.param_dtype(policy))}
  grads = {"w": jnp.full(size, gradient, params["w"].dtype)}

  @jax.jit
  def step(carry, i):
    params, state = carry
    updates, state = transformation.update(
        grads, state, params, key=jax.random.fold_in(jax.random.key(0), i))
    return (optax.apply_updates(params, updates), state), None

  (params, _), _ = jax.lax.scan(step, (params, transformation.init(params)), jnp.arange(steps))
  assert params["w"].dtype == precision.param_dtype(policy)
  return np.asarray(params["w"], np.float64)


@pytest.mark.parametrize("policy", ["float32", *LEARNING])
def test_steps_of_a_thousandth_move_ones(policy):
  """300 AdamW steps of 1e-3 from 1 end at 0.7. bfloat16's neighbours there are 0.004 apart."""
  weights = train(policy, optax.adamw(1e-3, weight_decay=0.0), 1.0, 300)
  assert abs(weights.mean() - 0.7) < 0.005
  # A weight rounded at random walks: a quarter of the way between neighbours 2^-8 apart, each step
  # adds a variance of 1/4 * 3/4 * 2^-16, together a standard deviation of 0.029.
  assert weights.std() < 0.04 if policy == "bfloat16_stochastic" else weights.std() == 0


def test_nearest_rounding_loses_them():
  assert (train("bfloat16_nearest", optax.adamw(1e-3, weight_decay=0.0), 1.0, 300) == 1).all()


@pytest.mark.parametrize("policy", precision.POLICIES)
def test_without_gradient_nothing_changes(policy):
  """Whatever is a bfloat16 number stays it: there is nothing to round."""
  for start in (1.0, -0.0123, 65280.0):
    start = float(np.asarray(start).astype(ml_dtypes.bfloat16))
    assert (train(policy, optim.adamw_rms(1e-2), 0.0, 500, start=start, size=64) == start).all()


def test_stochastic_rounding_is_unbiased_between_the_two_neighbours():
  """A share f above the lower neighbour goes up with probability f: within 5 standard deviations."""
  n = 200_000
  lower, upper = 1.0, 1.0078125
  for share in (0.01, 0.3, 0.5, 0.999):
    x = np.float32(lower + share * (upper - lower))
    rounded = np.asarray(precision.round_stochastically(jnp.full(n, x), jax.random.key(1)))
    assert set(np.unique(rounded)) == {lower, upper}
    exact = (float(x) - lower) / (upper - lower)
    assert abs((rounded == upper).mean() - exact) < 5 * np.sqrt(exact * (1 - exact) / n)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_stochastic_rounding_passes_what_is_not_finite(value):
  rounded = precision.round_stochastically(jnp.full(1000, value, jnp.float32), jax.random.key(0))
  np.testing.assert_array_equal(rounded, np.full(1000, value, np.float32))


def test_random_bits_depend_on_key_and_parameter_alone():
  """Not on the tree around it. Another path or key: other bits."""
  transformation = precision.keep_parameters(optax.sgd(1.0), "bfloat16_stochastic")
  w, g = jnp.ones(512, jnp.bfloat16), jnp.full(512, 2 ** -9, jnp.bfloat16)

  def step(seed, *names):
    params = {name: w for name in names}
    return transformation.update({name: g for name in names}, transformation.init(params), params,
                                 key=jax.random.key(seed))[0]

  both = step(0, "a", "b")
  np.testing.assert_array_equal(both["a"], step(0, "a")["a"])
  assert (both["a"] != both["b"]).any()
  assert (both["a"] != step(1, "a")["a"]).any()


@pytest.mark.parametrize("policy, error", [("bfloat16_master", 1e-5), ("bfloat16_kahan", 5e-4)])
def test_what_is_kept_beside_makes_up_for_the_rounding(policy, error):
  """The sum of 1,000 small random steps, as a share of the weight.

  One rounding is at most 2^-24 = 6e-8 of it in the master copy, 2^-17 = 8e-6 in Kahan's pair; a
  thousand of them, as a random walk, about 30 times as much.
  """
  transformation = precision.keep_parameters(optax.sgd(1.0), policy)
  rng = np.random.default_rng(0)
  start = rng.uniform(1, 2, 256).astype(ml_dtypes.bfloat16)
  steps = rng.normal(scale=1e-4, size=(1000, 256)).astype(ml_dtypes.bfloat16)
  params = {"w": jnp.asarray(start)}
  state = transformation.init(params)
  update = jax.jit(transformation.update)
  for step in steps:
    updates, state = update({"w": jnp.asarray(step)}, state, params)
    params = optax.apply_updates(params, updates)
  exact = start.astype(np.float64) - steps.astype(np.float64).sum(axis=0)
  kept = np.asarray(state.kept["w"], np.float64)
  if policy == "bfloat16_kahan":
    kept = kept + np.asarray(params["w"], np.float64)
  np.testing.assert_allclose(kept, exact, rtol=error)
  np.testing.assert_allclose(np.asarray(params["w"], np.float64), exact, rtol=2 ** -8)


def test_the_optimizer_sees_float32():
  seen = []

  def record(updates, state, params):
    seen.extend(jax.tree.leaves((updates, params)))
    return updates, state

  spy = optax.GradientTransformation(lambda params: optax.EmptyState(), record)
  inner = optax.chain(spy, optim.adafactor(0.1))
  transformation = precision.keep_parameters(inner, "bfloat16_stochastic")
  params = {"kernel": jnp.ones((130, 130), jnp.bfloat16)}
  state = transformation.init(params)
  transformation.update(params, state, params, key=jax.random.key(0))
  assert {leaf.dtype for leaf in seen} == {jnp.dtype(jnp.float32)}
  assert {leaf.dtype for leaf in jax.tree.leaves(state)} <= {jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)}

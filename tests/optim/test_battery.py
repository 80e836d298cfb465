"""What every optimizer has to pass."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5jax import checkpoint, optim, state as states
from tests.optim import references, trees

STEPS = 50
RATES = tuple(0.02 * (0.5 + i / STEPS) for i in range(STEPS))
PLAIN, DECAYED = {}, dict(weight_decay=0.1)
# Of each optimizer, the first plainly and the second with all that has a state or acts on p.
CASES = {
    "adafactor": [PLAIN, dict(beta1=0.9, **DECAYED)],
    "adafactor_hf": [PLAIN, dict(beta1=0.9, **DECAYED), dict(warmup_init=True),
                     dict(relative_step=False, scale_parameter=False)],
    "adamw": [PLAIN, dict(b1=0.8, b2=0.95, **DECAYED)],
    "adamw_rms": [PLAIN, dict(b1=0.8, b2=0.95, **DECAYED)],
    "lion": [PLAIN, DECAYED],
    "lion_rms": [PLAIN, DECAYED],
    "momentum": [PLAIN, dict(nesterov=True, **DECAYED)],
    "muon": [PLAIN, dict(consistent_rms=None, **DECAYED)],
    "schedule_free_adamw": [PLAIN, dict(b1=0.95, **DECAYED)],
    "sophia_g": [PLAIN, DECAYED],
    "sophia_g_rms": [PLAIN, DECAYED]}


# float32 carries 6e-8 per operation. A step of about ten is off by a few of these, relative to its
# own size, of at most a tenth of the largest entry; fifty add up to less than 5e-6 of that entry.
TOLERANCES = {
    # Optax's 1 - b2^t cancels: 5e-5 of the second moment, 2.5e-5 of the first steps, fading with
    # 1 / t. In the matrix of 0.01 these steps are as large as the matrix.
    "adamw": 5e-5,
    # So with its AdamW's steps; and Newton-Schulz multiplies errors in small directions by up to
    # 3.44^5 = 480.
    "muon": 5e-5,
    # Entries whose curvature is near 0 divide by it what is left of gradients that cancel: a few
    # units of rounding become a hundred times as many, in matrices that a step can cross.
    "sophia_g": 5e-5, "sophia_g_rms": 5e-5}


def configured(name, case):
  """Returns the optimizer `name` with its settings number `case`."""
  return functools.partial(getattr(optim, name), **CASES[name][case])


@functools.lru_cache
def compiled(name, case):
  """Returns an update, jitted, and a list that grows whenever it is traced.

  The update maps params, state, grads, learning rate, further arguments to params, state.
  """
  traces = []

  @jax.jit
  def step(params, state, grads, learning_rate, further):
    traces.append(1)
    updates, state = configured(name, case)(learning_rate).update(grads, state, params, **further)
    return optax.apply_updates(params, updates), state

  return step, traces


def curvature(name, step):
  """The further arguments of a Sophia's update, every so many steps."""
  if "sophia" not in name or step % references.CURVATURE_EVERY:
    return {}
  return dict(curvature_gradients=trees.gradients(trees.CURVATURE + step),
              curvature_scale=np.float32(trees.CURVATURE_BATCH_SIZE))


def run(name, case, steps=STEPS):
  """Yields parameters and state after each step."""
  step, _ = compiled(name, case)
  params = jax.device_put(trees.parameters())
  state = configured(name, case)(0.0).init(params)
  for i in range(steps):
    params, state = step(params, state, trees.gradients(i), np.float32(RATES[i]), curvature(name, i))
    yield jax.device_get(params), state


def largest_errors(ours, theirs):
  """{key: errors of the matrix relative to its largest entry}."""
  return {key: np.abs(matrix - theirs[key]) / np.abs(theirs[key]).max()
          for key, matrix in trees.original_matrices(ours).items()}


@pytest.mark.parametrize("name, case", [(name, i) for name in CASES for i in range(len(CASES[name]))])
def test_trajectory(name, case):
  """Against formulas in float64, matrix by matrix, relative to the matrix's largest entry.

  A sign may turn where its argument is 0 within rounding, 1e-7 of the gradient: one in a million
  entries a step, that is one in 20,000 after fifty.
  """
  tolerance = TOLERANCES.get(name, 5e-6)
  reference = references.trajectory(
      functools.partial(getattr(references, name), **CASES[name][case]), RATES)
  for (ours, _), theirs in zip(run(name, case), reference, strict=True):
    errors = largest_errors(ours, theirs)
    worst = {key: error.max() for key, error in errors.items()}
    if "lion" in name:
      wrong = sum((error > tolerance).sum() for error in errors.values())
      assert wrong <= sum(error.size for error in errors.values()) / 20_000
    else:
      assert max(worst.values()) <= tolerance, max(worst, key=worst.get)
  # Neither the second call nor another learning rate compiles again; curvature is a second program.
  assert len(compiled(name, case)[1]) == (2 if "sophia" in name else 1)


def unstacked(tree):
  """Layers that were stacked, as `layer_0`, `layer_1` ... beside each other."""
  layers = tree["encoder"]["layers"]
  apart = {f"layer_{i}": jax.tree.map(lambda x, i=i: x[i], layers) for i in range(3)}
  return {**tree, "encoder": {**tree["encoder"], "layers": None, **apart}}


@pytest.mark.parametrize("name", CASES)
def test_stacked_layers_are_trained_as_if_they_were_not(name):
  """Same operations on the same numbers; sums may be taken in another order, 1e-7 each."""
  step, _ = compiled(name, 1)
  params = jax.tree.map(jnp.asarray, unstacked(trees.parameters()))
  state = configured(name, 1)(0.0).init(params)
  for (stacked, _), i in zip(run(name, 1, 4), range(4), strict=True):
    further = curvature(name, i)
    if further:
      further["curvature_gradients"] = unstacked(further["curvature_gradients"])
    params, state = step(params, state, unstacked(trees.gradients(i)), np.float32(RATES[i]), further)
  tolerance = 1e-5 if name == "muon" else 1e-6
  for ours, theirs in zip(jax.tree.leaves(unstacked(stacked)), jax.tree.leaves(params), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def without_gradient(name, case, steps):
  """The parameters after so many steps at zero gradients."""
  step, _ = compiled(name, case)
  params = jax.device_put(trees.parameters())
  state = configured(name, case)(0.0).init(params)
  zeros = jax.tree.map(jnp.zeros_like, params)
  for _ in range(steps):
    params, state = step(params, state, zeros, np.float32(0.1), {})
  return params


@pytest.mark.parametrize("name", CASES)
def test_five_hundred_steps_without_gradient_change_nothing(name):
  jax.tree.map(np.testing.assert_array_equal, without_gradient(name, 0, 500), trees.parameters())


@pytest.mark.parametrize("name", CASES)
def test_decay_without_gradient_spares_norms_and_position_tables(name):
  old, new = trees.flatten(trees.parameters()), trees.flatten(without_gradient(name, 1, 3))
  for path in old:
    if path[-1] in references.NOT_DECAYED:
      np.testing.assert_array_equal(new[path], old[path])
    else:
      assert np.all(np.abs(new[path]) < np.abs(old[path])), path


@pytest.mark.parametrize("name", CASES)
def test_nothing_moves_at_learning_rate_zero(name):
  step, _ = compiled(name, 1)
  params = jax.device_put(trees.parameters())
  state = configured(name, 1)(0.0).init(params)
  for i in range(3):
    params, state = step(params, state, trees.gradients(i), np.float32(0), curvature(name, i))
  jax.tree.map(np.testing.assert_array_equal, params, trees.parameters())


@pytest.mark.parametrize("name", CASES)
def test_states_are_float32_whatever_the_gradients_are(name):
  half = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), tree)
  params = half(trees.parameters())
  before = jax.eval_shape(configured(name, 1)(0.0).init, params)
  _, after = jax.eval_shape(configured(name, 1)(0.1).update, params, before, params)
  assert {x.dtype for x in jax.tree.leaves(before)} <= {jnp.dtype("float32"), jnp.dtype("int32")}
  assert jax.tree.structure(before) == jax.tree.structure(after)
  for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
    assert (old.shape, old.dtype) == (new.shape, new.dtype)


class Nowhere:
  """An input without a position."""

  def save(self, path):
    pathlib.Path(path).touch()

  def restore(self, path):
    pass


@pytest.mark.parametrize("name", CASES)
def test_states_come_back_as_they_were(tmp_path, name):
  *_, (params, opt_state) = run(name, 1, 2)
  state = states.TrainState(jnp.int32(2), jax.device_put(params), opt_state)
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(state, {}, Nowhere())
    restored, _ = checkpoints.restore(abstract, Nowhere())
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(restored)):
    assert (old.dtype, old.shape) == (new.dtype, new.shape)
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("name, setting", [
    ("adafactor", dict(beta1=0.0)), ("adafactor", dict(decay_rate=-0.8)),
    ("adafactor", dict(clipping_threshold=0)), ("adafactor", dict(multiply_by_parameter_scale=2)),
    ("adafactor_hf", dict(warmup_init=True, relative_step=False)),
    ("adafactor_hf", dict(decay_rate=-0.8)), ("adafactor_hf", dict(scale_parameter=None)),
    ("adamw", dict(eps=-1.0)), ("adamw", dict(weight_decay_exclude="scale")),
    ("adamw", dict(weight_decay_exclude=["("])), ("adamw_rms", dict(b1=1.0)),
    ("adamw_rms", dict(eps=0.0)), ("adamw_rms", dict(b2="x")), ("lion", dict(b2=0.0)),
    ("lion_rms", dict(min_rms=-1)), ("momentum", dict(decay=1)), ("momentum", dict(nesterov="yes")),
    ("muon", dict(num_iterations=2.5)), ("muon", dict(consistent_rms=0)),
    ("schedule_free_adamw", dict(b1=0.0)), ("sophia_g", dict(rho=0)),
    ("sophia_g_rms", dict(curvature_batch_size=-1))], ids=str)
def test_impossible_settings_are_refused_by_name(name, setting):
  with pytest.raises(ValueError, match=f"{name}.{next(iter(setting))}"):
    getattr(optim, name)(0.1, **setting)


@pytest.mark.parametrize("name", CASES)
def test_patterns_that_match_nothing_are_refused_with_the_nearest_path(name):
  transformation = getattr(optim, name)(0.1, weight_decay=0.1, weight_decay_exclude=["encoder_nrm"])
  with pytest.raises(ValueError, match=f"{name}.weight_decay_exclude = 'encoder_nrm'.*'encoder_norm'"):
    transformation.init(trees.parameters())

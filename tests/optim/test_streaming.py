"""Updates layer by layer, with states on the device or the host, against updates of all at once."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5jax import optim, sharding, state as states
from t5jax.optim.streaming import step_by_layer
from tests import tiny

OPTIMIZERS = {**{name: getattr(optim, name) for name in (
    "adafactor", "adafactor_hf", "adamw", "adamw_rms", "lion", "lion_rms", "momentum", "muon",
    "schedule_free_adamw")}, "adamw_8bit": optim.quantized(optim.adamw)}
MODEL = tiny.model(num_encoder_layers=3, num_decoder_layers=2)


def gradients(params):
  """Unequal in every layer."""
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(np.float32), params)


@pytest.mark.parametrize("memory", ["device", "host"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_all_at_once(name, memory):
  """To rounding, by the largest entry: Muon's five rounds of matmuls magnify that of each other."""
  params = tiny.parameters(MODEL)
  chain = states.transformation(MODEL, OPTIMIZERS[name], 0.1)
  grads, state, key = gradients(params), chain.init(params), jax.random.key(0)

  @jax.jit
  def whole(params, state):
    updates, state = chain.update(grads, state, params, key=key)
    return optax.apply_updates(params, updates), state, jnp.square(optax.tree.norm(updates))

  expected = whole(params, state)
  kind = sharding.HOST_MEMORY if memory == "host" else "device"
  layout = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=kind)
  on_device = layout.with_memory_kind("device")
  placed = jax.tree.map(lambda x: jax.device_put(x, layout if x.ndim else on_device), state)
  layouts = jax.tree.map(lambda x: x.sharding, placed)
  found = jax.jit(lambda params, state: step_by_layer(chain, grads, state, params, key),
                  out_shardings=(None, layouts, None))(params, placed)
  assert {x.sharding.memory_kind for x in jax.tree.leaves(found[1]) if x.ndim} == {kind}
  for (path, x), y in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected)):
    assert x.shape == y.shape and x.dtype == y.dtype, path
    np.testing.assert_allclose(jax.device_get(x), y, rtol=1e-5, atol=1e-5 * np.abs(y).max(), err_msg=str(path))

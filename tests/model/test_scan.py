"""Layers are scanned: the same numbers as a loop over them, and time to trace that does not grow."""

import jax
import jax.numpy as jnp
import numpy as np

from t5jax.model import layers, t5
from tests import tiny


def by_hand(params, config, inputs, targets):
  """The logits of T5(config) from its layers one by one."""
  table = params["token_embedder"]["embedding"]
  encoder_segments = (inputs != 0).astype(jnp.int32)

  def stack(part, x, encoded, depth):
    module = t5.RelativePositionBias(
        config.num_heads, part == "encoder", config.relative_attention_num_buckets,
        config.relative_attention_max_distance, std=1.0)
    bias = module.apply({"params": params[part]["relpos_bias"]})
    for i in range(depth):
      weights = jax.tree.map(lambda array: array[i], params[part]["layers"])
      x, _ = t5.Layer(config, deterministic=True).apply(
          {"params": weights}, x, bias, None, encoder_segments, encoded, None)
    return layers.RMSNorm(config.layer_norm_epsilon).apply({"params": params[part][f"{part}_norm"]}, x)

  encoded = stack("encoder", table[inputs], None, config.num_encoder_layers)
  hidden = stack("decoder", table[targets], encoded, config.num_decoder_layers)
  return hidden @ params["logits_dense"]["kernel"]


def test_outputs_and_gradients_are_those_of_a_loop():
  config = tiny.model(num_encoder_layers=2, num_decoder_layers=3)
  params, batch = tiny.parameters(config), tiny.batch(batch_size=2)
  inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
  inputs[1, 15:] = 0
  scanned = lambda params: t5.T5(config).apply({"params": params}, inputs, targets)
  looped = lambda params: by_hand(params, config, inputs, targets)
  results = [jax.jit(jax.value_and_grad(lambda p, f=f: (jnp.mean(f(p) ** 2), f(p)), has_aux=True))(params)
             for f in (scanned, looped)]
  for a, b in zip(*map(jax.tree.leaves, results), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(np.abs(b).max(), 1e-30))


def test_the_program_does_not_grow_with_depth():
  """24 layers and 4 are traced to equally many operations, of which the compile time is a function."""

  def size(depth):
    config = tiny.model(num_encoder_layers=depth, num_decoder_layers=depth)
    tokens = jax.ShapeDtypeStruct((2, 8), jnp.int32)
    init = jax.eval_shape(t5.T5(config).init, jax.random.key(0), tokens, tokens)
    loss = lambda variables, x: t5.T5(config).apply(variables, x, x).sum()
    return len(jax.jit(jax.grad(loss)).lower(init, tokens).as_text().splitlines())

  assert size(24) == size(4)

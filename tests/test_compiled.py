"""Counting the operations of compiled programs, and what a train step really computes."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from t5jax import compiled, memory, optim, sharding, step as steps
from t5jax.model import flops
from tests import tiny

LENGTHS = {"inputs": 512, "targets": 114}


def text_of(function, *arguments):
  return jax.jit(function).lower(*arguments).compile().as_text()


def test_matmuls_are_counted_as_often_as_they_run():
  x, w = jnp.ones((4, 8)), jnp.ones((3, 8, 8))
  once = 2 * 4 * 8 * 8
  assert compiled.matmul_flops(text_of(jnp.matmul, x, w[0])) == once
  by_heads = lambda x, y: jnp.einsum("BLHK,BMHK->BHLM", x, y)
  q = jnp.ones((2, 4, 3, 5))
  assert compiled.matmul_flops(text_of(by_heads, q, q)) == 2 * 2 * 3 * 4 * 4 * 5

  def scanned(x, w):
    return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0])

  # Forward, and backward by x and w.
  assert compiled.matmul_flops(text_of(jax.grad(scanned, argnums=(0, 1)), x, w)) == 3 * 3 * once


def test_loops_without_a_fixed_number_of_rounds_are_refused():
  loop = lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: x @ x, x)
  with pytest.raises(ValueError, match="no fixed number of rounds"):
    compiled.matmul_flops(text_of(loop, jnp.ones((4, 4)), 3))


@pytest.fixture(scope="module")
def program():
  """T5 v1.1 of small's shape with two layers a stack, batch 8 at 512/114, as compiled: (model, text)."""
  model = tiny.model(num_encoder_layers=2, num_decoder_layers=2, vocab_size=32_128, emb_dim=512,
                     mlp_dim=1024, num_heads=6, head_dim=64)
  mesh = sharding.MeshConfig().make(jax.devices()[:1])
  return model, memory.compile_step(model, optim.adamw_rms, mesh, 8, LENGTHS).as_text()


def test_a_step_computes_little_besides_the_models_own_work(program):
  model, text = program
  own = flops.train_step_flops(model, 8, LENGTHS["inputs"], LENGTHS["targets"])
  assert own / compiled.matmul_flops(text) > 0.97


def test_no_array_of_a_step_holds_more_logits_than_a_chunk(program):
  """Nor a one-hot of the vocabulary: of all arrays with its dim there are only the parameters' shapes and
  a chunk's, which is half of the 912 target tokens."""
  model, text = program
  sizes = {math.prod(shape) // model.vocab_size for shape in compiled.shapes(text)
           if model.vocab_size in shape}
  assert sorted(size for size in sizes if size > 1) == [456, model.emb_dim]


def test_what_each_remat_policy_computes_again():
  """Dots: nothing but elementwise functions; minimal: attention, the decoder's keys and values; full: matmuls
  with weights as well."""
  mesh = sharding.MeshConfig().make(jax.devices()[:1])
  lengths = {"inputs": 24, "targets": 10}

  def matmul_flops(remat):
    step = memory.compile_step(tiny.model(remat=remat), optim.adamw_rms, mesh, 2, lengths)
    return compiled.matmul_flops(step.as_text())

  none, dots, minimal, offload, full = map(matmul_flops, ("none", "dots", "minimal", "offload", "full"))
  model = tiny.model()
  pairs = (model.num_encoder_layers * 24 * 24 + model.num_decoder_layers * 10 * (10 + 24)) * 2
  attention = 2 * 2 * pairs * model.num_heads * model.head_dim
  of_encoded = 2 * model.num_decoder_layers * 2 * 2 * 24 * model.emb_dim * model.num_heads * model.head_dim
  assert none == dots
  assert of_encoded < minimal - none <= of_encoded + attention
  assert offload == minimal
  assert full - none > of_encoded + attention


def test_fused_attention_is_not_computed_again():
  """Nor is softmax: but for full and minimal the backward pass has what the forward one computed."""
  def kernels(remat, attention):
    gradient = jax.make_jaxpr(functools.partial(
        steps.gradients, tiny.model(remat=remat, attention=attention), z_loss=0.0, num_microbatches=1))
    text = str(gradient(tiny.parameters(tiny.model()), tiny.batch()))
    return text.count("pallas_call[" if attention == "pallas" else " exp ")

  for attention in ("pallas", "xla"):
    none, dots, minimal = (kernels(remat, attention) for remat in ("none", "dots", "minimal"))
    assert 0 < none == dots < minimal

"""Floating-point operations that a T5 step needs, and what devices can do at most.

Counted are the matmuls of the model itself, 2 per multiply-add, the backward pass as twice the
forward: recomputation, softmax, norms and the optimizer are not model work (arXiv:2204.02311, app. B).
"""

# Dense bfloat16 peaks from the makers' data sheets, FLOP/s per JAX device (a core on TPU v2 and v3;
# float16 on V100 and T4, which have no bfloat16 units).
PEAK_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA GeForce RTX 4090": 165e12,
    "NVIDIA GeForce RTX 3090": 71e12,
    "Tesla V100": 125e12,
    "Tesla T4": 65e12,
    "TPU v2": 23e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}


def peak_flops(device):
  """Returns the peak FLOP/s of a jax.Device, or None where it is not known (any CPU)."""
  kind = device.device_kind
  matches = [name for name in PEAK_FLOPS if kind.startswith(name)]
  return PEAK_FLOPS[max(matches, key=len)] if matches else None


def train_step_flops(config, batch_size, input_length, target_length):
  """Returns the model FLOPs of one forward and backward pass.

  Args:
    config: T5Config with vocab_size set.
    batch_size: examples.
    input_length: encoder tokens per example.
    target_length: decoder tokens per example.
  """
  emb, joined, length, target = config.emb_dim, config.joined_kv_dim, input_length, target_length
  mlp = (len(config.mlp_activations) + 1) * emb * config.mlp_dim
  projections = 4 * emb * joined
  encoder_layer = length * (projections + mlp) + 2 * length * length * joined
  decoder_layer = (
      target * (projections + mlp) + 2 * target * target * joined  # self-attention and MLP
      + target * 2 * emb * joined + length * 2 * emb * joined  # cross: query, out; key, value
      + 2 * target * length * joined)
  head = target * emb * config.vocab_size
  multiply_adds = (config.num_encoder_layers * encoder_layer
                   + config.num_decoder_layers * decoder_layer + head)
  return 3 * 2 * batch_size * multiply_adds

"""Architecture of a T5 and the published sizes as presets."""

import dataclasses
from typing import Literal

from t5jax.settings import AT_LEAST_ONE, POSITIVE, RATE, SettingError, check_choice, check_settings

VOCAB_MULTIPLE = 128  # Embedding rows are padded to it: matrix units and meshes like round numbers.


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Shape and numerics of a T5 v1.0 or v1.1.

  Attributes:
    emb_dim: width of the residual stream (d_model in the papers).
    num_heads: attention heads.
    head_dim: width of a head (d_kv); num_heads * head_dim need not equal emb_dim.
    mlp_dim: hidden width of the feed-forward layer (d_ff).
    num_encoder_layers: encoder depth.
    num_decoder_layers: decoder depth.
    vocab_size: embedding rows. None: the tokenizer's size rounded up to a multiple of 128.
    mlp_activations: one branch per entry, multiplied: ("relu",) in v1.0, ("gelu", "linear") in v1.1
      (gelu is the tanh form, as in T5X and in HF's `gelu_new`).
    logits_via_embedding: True ties the head to the embedding and scales the decoder's output by
      emb_dim**-0.5 (v1.0); False has a head of its own, unscaled (v1.1).
    head_init: "scaled" starts with logits of order 1 and a loss near ln(vocab_size): an untied head
      has std emb_dim**-0.5; before a tied one the decoder's last norm starts at emb_dim**-0.5.
      "hf" is transformers' and nanoT5's way, 1.0 for either: the first loss is 60 to 110 untied,
      about sqrt(emb_dim) tied.
    dropout_rate: after embeddings, attention weights, sublayers and stacks. Default 0.
    dtype: of activations and of the operands of every matmul but the logits' accumulation.
      Norm statistics, attention softmax, logits and loss are always float32.
    param_precision: how parameters are kept between steps, a policy of optim/precision.py.
    remat: what the backward pass recomputes, per layer: "none" nothing, "dots" elementwise functions,
      "minimal" also attention and the decoder's keys and values, "offload" the same with the rest kept in
      the host's memory, where devices reach it, and "full" all but each layer's input.
    decoder_remat: the decoder's, where it is to differ from the encoder's.
    attention: what computes it. "xla" materialises the weights [batch, heads, length, length]; the only
      one with dropout, and best for short rows. "cudnn" is NVIDIA's fused kernel: bfloat16, even lengths,
      a bias [heads, length, length]. "pallas" is ours (model/flash.py): memory linear in length, on
      NVIDIA GPUs from Ampere on; it compiles for TPUs, and is interpreted, slowly, on CPUs.
    relative_attention_num_buckets: rows of each stack's relative position table.
    relative_attention_max_distance: offsets from here on share the last bucket.
    layer_norm_epsilon: added to the mean square in RMSNorm.
  """

  emb_dim: int
  num_heads: int
  head_dim: int
  mlp_dim: int
  num_encoder_layers: int
  num_decoder_layers: int
  vocab_size: int | None = None
  mlp_activations: tuple[str, ...] = ("gelu", "linear")
  logits_via_embedding: bool = False
  head_init: Literal["scaled", "hf"] = "scaled"
  dropout_rate: float = 0.0
  dtype: Literal["bfloat16", "float32"] = "bfloat16"
  param_precision: Literal["float32", "bfloat16_stochastic", "bfloat16_kahan", "bfloat16_master",
                           "bfloat16_nearest"] = "float32"
  remat: Literal["none", "dots", "minimal", "offload", "full"] = "none"
  decoder_remat: Literal["none", "dots", "minimal", "offload", "full"] | None = None
  attention: Literal["xla", "cudnn", "pallas"] = "xla"
  relative_attention_num_buckets: int = 32
  relative_attention_max_distance: int = 128
  layer_norm_epsilon: float = 1e-6

  def __post_init__(self):
    check_settings(
        self, emb_dim=AT_LEAST_ONE, num_heads=AT_LEAST_ONE, head_dim=AT_LEAST_ONE,
        mlp_dim=AT_LEAST_ONE, num_encoder_layers=AT_LEAST_ONE, num_decoder_layers=AT_LEAST_ONE,
        vocab_size=AT_LEAST_ONE, dropout_rate=RATE, layer_norm_epsilon=POSITIVE)
    object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
    known = ("relu", "gelu", "linear")
    if not self.mlp_activations or any(a not in known for a in self.mlp_activations):
      raise SettingError("T5Config.mlp_activations", self.mlp_activations,
                         f"one or more of {', '.join(known)}")
    self._check_attention()
    buckets, far = self.relative_attention_num_buckets, self.relative_attention_max_distance
    if buckets < 4 or buckets % 4:
      raise SettingError("T5Config.relative_attention_num_buckets", buckets, "a multiple of 4")
    if far <= buckets // 2:
      raise SettingError("T5Config.relative_attention_max_distance", far,
                         f"an int > {buckets // 2} (half of relative_attention_num_buckets)")

  def _check_attention(self):
    refusal = None
    if self.attention != "xla" and self.dropout_rate:
      refusal = (f"'xla' with T5Config.dropout_rate = {self.dropout_rate}: no other has weights "
                 "to drop")
    elif self.attention == "cudnn" and self.dtype != "bfloat16":
      refusal = f"'xla' or 'pallas' with T5Config.dtype = {self.dtype!r}: cuDNN needs 'bfloat16'"
    elif self.attention == "cudnn" and (self.head_dim % 8 or self.head_dim > 128):
      refusal = (f"'xla' or 'pallas' with T5Config.head_dim = {self.head_dim}: cuDNN needs a multiple "
                 "of 8, at most 128")
    if refusal:
      raise SettingError("T5Config.attention", self.attention, refusal)

  @property
  def joined_kv_dim(self):
    """Width of all heads together."""
    return self.num_heads * self.head_dim

  def with_vocabulary(self, num_tokens):
    """Returns the config sized for a tokenizer of `num_tokens` ids, sentinels included.

    Raises:
      SettingError: vocab_size is set and smaller than the tokenizer.
    """
    if self.vocab_size is None:
      padded = -(-num_tokens // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
      return dataclasses.replace(self, vocab_size=padded)
    if self.vocab_size < num_tokens:
      raise SettingError("T5Config.vocab_size", self.vocab_size,
                         f"at least the tokenizer's {num_tokens} ids, or None")
    return self


# emb_dim, num_heads, head_dim, mlp_dim (v1.0), mlp_dim (v1.1), layers per stack.
# Sources: arXiv:1910.10683 section 3.7 (v1.0); T5X's t5_1_1 configurations (v1.1). Tiny and mini
# are t5jax's own, for tests, first steps and machines without an accelerator.
_SIZES = {
    "tiny": (64, 4, 16, 256, 128, 2),
    "mini": (256, 4, 64, 1024, 512, 4),
    "small": (512, 8, 64, 2048, 1024, 6),
    "base": (768, 12, 64, 3072, 2048, 12),
    "large": (1024, 16, 64, 4096, 2816, 24),
    "xl": (1024, 32, 128, 16384, 5120, 24),
    "xxl": (1024, 128, 128, 65536, 10240, 24),
}
# v1.1 changed more than the feed-forward width for three of the sizes.
_V1_1_CHANGES = {
    "small": dict(num_heads=6, num_encoder_layers=8, num_decoder_layers=8),
    "xl": dict(emb_dim=2048, head_dim=64),
    "xxl": dict(emb_dim=4096, num_heads=64, head_dim=64),
}
SIZES = tuple(_SIZES)
# Where parameters and their updates fill the memory, float32 ones are the exception.
_BIG_SIZES = ("large", "xl", "xxl")


def _shape(name, size):
  check_choice(f"{name}.size", size, SIZES)
  return _SIZES[size]


def _preset(name, size, overrides, **values):
  for field in overrides:
    check_choice(f"{name}'s override", field, [f.name for f in dataclasses.fields(T5Config)])
  if size in _BIG_SIZES:
    values["param_precision"] = "bfloat16_stochastic"
  return T5Config(**values | {field: value for field, value in overrides.items() if value is not None})


def t5_1_0(size="base", **overrides):
  """Returns T5 v1.0 (ReLU, tied head) of a published size, or tiny or mini.

  Overrides are fields of T5Config; None leaves the preset's. Parameters are float32 up to base,
  bfloat16 with stochastic rounding from large on.
  """
  emb_dim, num_heads, head_dim, mlp_dim, _, depth = _shape("t5_1_0", size)
  return _preset("t5_1_0", size, overrides, emb_dim=emb_dim, num_heads=num_heads, head_dim=head_dim,
                 mlp_dim=mlp_dim, num_encoder_layers=depth, num_decoder_layers=depth,
                 mlp_activations=("relu",), logits_via_embedding=True)


def t5_1_1(size="base", **overrides):
  """Returns T5 v1.1 (gated GELU, untied head); see t5_1_0."""
  emb_dim, num_heads, head_dim, _, mlp_dim, depth = _shape("t5_1_1", size)
  shape = dict(emb_dim=emb_dim, num_heads=num_heads, head_dim=head_dim, mlp_dim=mlp_dim,
               num_encoder_layers=depth, num_decoder_layers=depth)
  return _preset("t5_1_1", size, overrides, **shape | _V1_1_CHANGES.get(size, {}))

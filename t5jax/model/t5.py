"""The T5 encoder-decoder (arXiv:1910.10683), layers scanned.

Parameters are nested dicts with T5X's names. A stack's layers share one set of arrays with a leading
`layers` axis: `encoder/layers/mlp/wo/kernel` is [num_encoder_layers, mlp_dim, emb_dim].
Shapes: B batch, L length, M encoder length, D emb_dim, H heads, V vocab.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5jax.model import layers
from t5jax.model.attend import MASKED, WEIGHTS
from t5jax.model.attention import Attention, RelativePositionBias
from t5jax.model.config import T5Config
from t5jax.sharding import HOST_MEMORY

_named = jax.checkpoint_policies.save_only_these_names
_FUSED_ATTENTION = ("pallas_call", "dot_product_attention_fwd_wrapper")  # The latter is cuDNN's.


def _is_work(primitive, *_, **__):
  return primitive.name in ("dot_general", *_FUSED_ATTENTION)


_REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        _is_work, _named(layers.PROJECTION, layers.OF_ENCODED, WEIGHTS)),
    "minimal": _named(layers.PROJECTION),
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=[layers.PROJECTION],
        offload_src="device", offload_dst=HOST_MEMORY),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Layer(nn.Module):
  """One layer of either stack: each sublayer is norm, transform, dropout, residual sum.

  `bias` is that of self-attention. `encoder_segments` [B, M] hide the encoder's padding from itself and
  from the decoder; `segments` [B, L], of `x` itself, keep packed documents apart, and are None
  otherwise. `encoded` is None in the encoder. Called by nn.scan: returns (x, None).
  """

  config: T5Config
  deterministic: bool
  cache_length: int | None = None

  @nn.compact
  def __call__(self, x, bias, segments, encoder_segments, encoded, position):
    is_decoder = encoded is not None
    attend = lambda name: functools.partial(
        Attention(self.config.num_heads, self.config.head_dim, self.config.dropout_rate,
                  self.deterministic, self.config.attention, name=name),
        query_segments=segments, position=position)
    y = self._norm("pre_self_attention_layer_norm" if is_decoder else "pre_attention_layer_norm", x)
    x = x + self._dropout(attend("self_attention" if is_decoder else "attention")(
        y, y, bias, causal=is_decoder and position is None, cache_length=self.cache_length,
        key_segments=segments if is_decoder else encoder_segments))
    if is_decoder:
      y = self._norm("pre_cross_attention_layer_norm", x)
      x = x + self._dropout(
          attend("encoder_decoder_attention")(y, encoded, key_segments=encoder_segments))
    y = layers.MLP(self.config.mlp_activations, self.config.mlp_dim, self.config.dropout_rate,
                   self.deterministic, name="mlp")(self._norm("pre_mlp_layer_norm", x))
    x = x + self._dropout(y)
    return nn.with_logical_constraint(x, ("batch", "length", "embed")), None

  def _norm(self, name, x):
    return layers.RMSNorm(self.config.layer_norm_epsilon, name=name)(x)

  def _dropout(self, x):
    return layers.Dropout(self.config.dropout_rate, self.deterministic)(x)


def _scan_layers(config, num_layers, remat, deterministic, cache_length=None):
  """Returns `num_layers` layers as one module whose parameters carry a leading `layers` axis."""
  layer = Layer
  if remat != "none":
    # Under scan the compiler cannot merge the recomputation with the original anyway.
    layer = nn.remat(Layer, prevent_cse=False, policy=_REMAT_POLICIES[remat])
  scanned = nn.scan(
      layer, variable_axes={"params": 0, "cache": 0}, split_rngs={"params": True, "dropout": True},
      in_axes=nn.broadcast, length=num_layers, metadata_params={nn.PARTITION_NAME: "layers"})
  return scanned(config, deterministic, cache_length, name="layers")


def _relative_bias(config, bidirectional):
  return RelativePositionBias(
      config.num_heads, bidirectional, config.relative_attention_num_buckets,
      config.relative_attention_max_distance, std=config.emb_dim ** -0.5, name="relpos_bias")()


def _for_all_layers(config, bias, length):
  """The bias as the layers of a stack take it: a matrix is made once, not by each of them."""
  return bias if config.attention == "pallas" else bias.matrix(length, length)


class Encoder(nn.Module):
  """[B, M, D] embeddings, their own segments or None, and those of keys [B, M] -> [B, M, D]."""

  config: T5Config
  deterministic: bool

  @nn.compact
  def __call__(self, x, segments, key_segments):
    dropout = layers.Dropout(self.config.dropout_rate, self.deterministic)
    bias = _for_all_layers(self.config, _relative_bias(self.config, bidirectional=True), x.shape[1])
    config = self.config
    x, _ = _scan_layers(config, config.num_encoder_layers, config.remat, self.deterministic)(
        dropout(x), bias, segments, key_segments, None, None)
    return dropout(layers.RMSNorm(self.config.layer_norm_epsilon, name="encoder_norm")(x))


class Decoder(nn.Module):
  """Embeddings [B, L, D] -> hidden states [B, L, D], normed and, with a tied head, scaled.

  With `position`, [B, 1, D] of one token, against a cache of `cache_length` positions.
  """

  config: T5Config
  deterministic: bool
  cache_length: int | None = None

  @nn.compact
  def __call__(self, x, segments, encoded, encoder_segments, position=None):
    config = self.config
    bias = _relative_bias(config, bidirectional=False)
    # Causality alone hides the positions ahead: padding only ever follows the real targets.
    if position is None:
      bias = _for_all_layers(config, bias, x.shape[1])
    else:
      bias = bias.at(position, self.cache_length)
      bias += MASKED * (jnp.arange(self.cache_length) > position)
    dropout = layers.Dropout(config.dropout_rate, self.deterministic)
    remat = config.decoder_remat or config.remat
    x, _ = _scan_layers(config, config.num_decoder_layers, remat, self.deterministic, self.cache_length)(
        dropout(x), bias, segments, encoder_segments, encoded, position)
    # A tied head finds the input token's own embedding in x: at scale 1 its logit would start at
    # sqrt(emb_dim), and the first loss with it.
    is_scaled = config.logits_via_embedding and config.head_init == "scaled"
    initial_scale = config.emb_dim ** -0.5 if is_scaled else 1.0
    x = dropout(layers.RMSNorm(config.layer_norm_epsilon, initial_scale, name="decoder_norm")(x))
    return x * config.emb_dim ** -0.5 if config.logits_via_embedding else x


class T5(nn.Module):
  """The whole model. `deterministic` turns dropout off; otherwise pass a "dropout" rng.

  Attributes:
    config: its shape; vocab_size must be set.
    deterministic: no dropout.
    cache_length: positions of the decoder's cache; only for `decode_token`.
  """

  config: T5Config
  deterministic: bool = True
  cache_length: int | None = None

  def setup(self):
    config = self.config
    self.token_embedder = layers.Embedding(config.vocab_size, config.emb_dim, config.dtype)
    self.encoder = Encoder(config, self.deterministic)
    self.decoder = Decoder(config, self.deterministic, self.cache_length)
    if not config.logits_via_embedding:
      std = config.emb_dim ** -0.5 if config.head_init == "scaled" else 1.0
      self.logits_dense = Head(config.vocab_size, std)

  def __call__(self, encoder_input_tokens, decoder_input_tokens, encoder_segment_ids=None,
               decoder_segment_ids=None):
    """Integer ids [B, M] and [B, L] -> float32 logits [B, L, V]; for the segments see `decode`."""
    return self._logits(self.decode(encoder_input_tokens, decoder_input_tokens, encoder_segment_ids,
                                    decoder_segment_ids))

  def decode(self, encoder_input_tokens, decoder_input_tokens, encoder_segment_ids=None,
             decoder_segment_ids=None):
    """Integer ids [B, M] and [B, L] -> [B, L, D], from which the head makes logits.

    Id 0 in the encoder is padding. In packed rows the segment ids, int32 like the ids, tell the documents
    apart: positions of one number, the same in encoder and decoder, see each other alone; 0 is padding.
    Decoder inputs are shifted within each segment.
    """
    if (encoder_segment_ids is None) != (decoder_segment_ids is None):
      raise ValueError("segment ids are needed for both encoder and decoder, or for neither")
    encoded, encoder_segments = self.encode(encoder_input_tokens, encoder_segment_ids)
    return self.decoder(self._embed(decoder_input_tokens), decoder_segment_ids, encoded, encoder_segments)

  def encode(self, encoder_input_tokens, segment_ids=None):
    """Returns the encoder's output [B, M, D] and the segments of its positions [B, M], 0 for padding."""
    segments = (encoder_input_tokens != 0).astype(jnp.int32) if segment_ids is None else segment_ids
    return self.encoder(self._embed(encoder_input_tokens), segment_ids, segments), segments

  def decode_token(self, encoded, encoder_segments, token, position):
    """Integer ids [B] at `position` -> float32 logits [B, V]; reads and writes "cache"."""
    hidden = self.decoder(self._embed(token[:, None]), None, encoded, encoder_segments, position)
    return self._logits(hidden)[:, 0]

  def _embed(self, tokens):
    return nn.with_logical_constraint(self.token_embedder(tokens), ("batch", "length", "embed"))

  def _logits(self, hidden):
    head = self.token_embedder.attend if self.config.logits_via_embedding else self.logits_dense
    return nn.with_logical_constraint(head(hidden), ("batch", "length", "vocab"))


def head_kernel(config, params):
  """The head's [D, V] among the parameters of a T5: its own, or the embedding's."""
  if config.logits_via_embedding:
    return params["token_embedder"]["embedding"].T
  return params["logits_dense"]["kernel"]


class Head(nn.Module):
  """An untied output head: kernel [D, V], float32 logits."""

  vocab_size: int
  std: float

  @nn.compact
  def __call__(self, x):
    kernel = layers.param(self, "kernel", layers.normal(self.std), (x.shape[-1], self.vocab_size),
                          ("embed", "vocab"))
    return layers.logits(x, kernel)

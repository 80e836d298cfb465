"""A model small enough to train in a test, and random batches for it."""

import jax
import numpy as np

from t5jax import sharding
from t5jax.model import config
from t5jax.model.t5 import T5

VOCAB_SIZE = 256
INPUT_LENGTH, TARGET_LENGTH = 20, 12


def model(version="t5_1_1", **overrides):
  """A tiny T5Config in float32."""
  return getattr(config, version)("tiny", **{"vocab_size": VOCAB_SIZE, "dtype": "float32", **overrides})


def parameters(model, seed=0):
  """Fresh float32 parameters."""
  tokens = np.ones((1, 4), np.int32)
  return sharding.unbox(jax.jit(T5(model).init)(jax.random.key(seed), tokens, tokens))["params"]


def batch(seed=0, batch_size=8, lengths=None, vocab_size=VOCAB_SIZE):
  """A batch; `lengths` are the target lengths of the rows, at most TARGET_LENGTH."""
  rng = np.random.default_rng(seed)
  lengths = np.full(batch_size, TARGET_LENGTH) if lengths is None else np.asarray(lengths)
  weights = (np.arange(TARGET_LENGTH) < lengths[:, None]).astype(np.float32)
  targets = rng.integers(2, vocab_size, (batch_size, TARGET_LENGTH)) * weights.astype(np.int64)
  return dict(
      encoder_input_tokens=rng.integers(2, vocab_size, (batch_size, INPUT_LENGTH)).astype(np.int32),
      decoder_input_tokens=np.pad(targets, ((0, 0), (1, 0)))[:, :-1].astype(np.int32),
      decoder_target_tokens=targets.astype(np.int32), decoder_loss_weights=weights)

"""Packed rows, and attention's implementations in the whole model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5jax import step as steps
from t5jax.model import attend
from t5jax.model.t5 import T5
from t5jax.settings import SettingError
from tests import tiny

IMPLEMENTATIONS = ["xla", "pallas"]
# Tokens of the encoder and of the decoder, of two documents that share a row with a little padding.
LENGTHS = (9, 6), (5, 8)
ROW = 16


@pytest.fixture(scope="module")
def documents():
  """[(encoder tokens, decoder targets)]."""
  rng = np.random.default_rng(0)
  return [tuple(rng.integers(2, tiny.VOCAB_SIZE, length) for length in lengths) for lengths in LENGTHS]


def alone(documents):
  """A batch of one document a row."""
  batch = {name: np.zeros((len(documents), ROW), np.int32)
           for name in ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")}
  for row, (inputs, targets) in enumerate(documents):
    batch["encoder_input_tokens"][row, :len(inputs)] = inputs
    batch["decoder_input_tokens"][row, 1:len(targets)] = targets[:-1]
    batch["decoder_target_tokens"][row, :len(targets)] = targets
  return batch


def packed(documents):
  """A batch of one row that holds them all."""
  batch = {name: np.zeros((1, ROW), np.int32)
           for name in ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens",
                        "encoder_segment_ids", "decoder_segment_ids")}
  start, target_start = 0, 0
  for number, (inputs, targets) in enumerate(documents, start=1):
    end, target_end = start + len(inputs), target_start + len(targets)
    batch["encoder_input_tokens"][0, start:end] = inputs
    batch["encoder_segment_ids"][0, start:end] = number
    batch["decoder_input_tokens"][0, target_start + 1:target_end] = targets[:-1]
    batch["decoder_target_tokens"][0, target_start:target_end] = targets
    batch["decoder_segment_ids"][0, target_start:target_end] = number
    start, target_start = end, target_end
  return batch


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def run(request):
  """A function of a batch: (encoder's output, logits)."""
  model = tiny.model(attention=request.param)
  params = tiny.parameters(model)

  @jax.jit
  def call(batch):
    names = ("encoder_input_tokens", "decoder_input_tokens", "encoder_segment_ids", "decoder_segment_ids")
    tokens, decoder_tokens, ids, decoder_ids = (batch.get(name) for name in names)
    encoded, _ = T5(model).apply({"params": params}, tokens, ids, method="encode")
    return encoded, T5(model).apply({"params": params}, tokens, decoder_tokens, ids, decoder_ids)

  return call


def token_losses(logits, targets):
  """Cross entropies [B, L]."""
  return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]


def test_a_documents_losses_do_not_depend_on_packing(run, documents):
  apart, together = alone(documents), packed(documents)
  losses_apart = token_losses(run(apart)[1], apart["decoder_target_tokens"])
  losses_together = token_losses(run(together)[1], together["decoder_target_tokens"])[0]
  expected = np.concatenate([row[:len(targets)] for row, (_, targets) in zip(losses_apart, documents)])
  np.testing.assert_allclose(losses_together[:len(expected)], expected, atol=1e-5)


def test_documents_of_a_row_do_not_see_each_other(run, documents):
  """A's first input and target token are changed; nothing at B's positions does."""
  batch = packed(documents)
  changed = {name: x.copy() for name, x in batch.items()}
  changed["encoder_input_tokens"][0, 0] += 1
  changed["decoder_input_tokens"][0, 1] += 1
  before, after = run(batch), run(changed)
  for x, y, name in zip(before, after, ("encoder_segment_ids", "decoder_segment_ids")):
    is_b = batch[name] == 2
    np.testing.assert_allclose(x[is_b], y[is_b], atol=1e-6)
    assert np.abs(x[batch[name] == 1] - y[batch[name] == 1]).max() > 1e-2


def test_gradients_of_a_train_step(documents):
  """Scanned and recomputed layers, packed rows: all parameters' gradients, to 1e-5 of the largest."""
  batch = packed(documents)
  batch["decoder_loss_weights"] = (batch["decoder_segment_ids"] != 0).astype(np.float32)
  models = [tiny.model(attention=name, num_encoder_layers=1, num_decoder_layers=1, remat="full")
            for name in IMPLEMENTATIONS]
  params = tiny.parameters(models[0])
  xla, pallas = (jax.jit(lambda params: steps.gradients(model, params, batch, 0.0, 1)[0])(params)
                 for model in models)
  for (path, x), y in zip(jax.tree.leaves_with_path(xla), jax.tree.leaves(pallas)):
    assert np.abs(x - y).max() <= 1e-5 * max(1, np.abs(x).max()), path


def test_padding_is_hidden_by_every_implementation():
  """Logits of all implementations that run here, with rows padded unequally."""
  batch = tiny.batch(batch_size=2)
  batch["encoder_input_tokens"][1, 7:] = 0
  tokens = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
  params = {"params": tiny.parameters(tiny.model())}
  xla, pallas = (jax.jit(T5(tiny.model(attention=name)).apply)(params, *tokens)
                 for name in IMPLEMENTATIONS)
  np.testing.assert_allclose(pallas, xla, atol=1e-5)


def test_segments_of_one_side_are_refused():
  tokens = np.ones((1, 4), np.int32)
  with pytest.raises(ValueError, match="both encoder and decoder"):
    T5(tiny.model()).init(jax.random.key(0), tokens, tokens, tokens)


@pytest.mark.parametrize("settings, message", [
    (dict(attention="flash"), "T5Config.attention = 'flash'"),
    (dict(attention="pallas", dropout_rate=0.1), "'pallas'.*'xla' with T5Config.dropout_rate = 0.1"),
    (dict(attention="cudnn"), "'cudnn'.*T5Config.dtype = 'float32'.*'bfloat16'"),
    (dict(attention="cudnn", dtype="bfloat16", head_dim=12), "T5Config.head_dim = 12.*multiple of 8"),
    (dict(attention="cudnn", dtype="bfloat16", head_dim=256), "T5Config.head_dim = 256.*at most 128")])
def test_settings_that_an_implementation_cannot_do(settings, message):
  with pytest.raises(SettingError, match=message):
    tiny.model(**settings)


class Gpu:
  """What check_machine asks a jax.Device for."""

  platform = "gpu"

  def __init__(self, device_kind, compute_capability):
    self.device_kind, self.compute_capability = device_kind, compute_capability


@pytest.mark.parametrize("implementation, device, message", [
    ("cudnn", None, "'cudnn'.*needs an NVIDIA GPU, and JAX runs on cpu"),
    ("cudnn", Gpu("NVIDIA H100", "9.0"), "even lengths, and these are 512, 115"),
    ("pallas", Gpu("Tesla V100", "7.0"), "'pallas'.*'xla'.*Ampere.*Tesla V100")])
def test_machines_that_an_implementation_cannot_run_on(implementation, device, message, monkeypatch):
  if device is not None:
    monkeypatch.setattr(jax, "devices", lambda: [device])
  with pytest.raises(SettingError, match=message):
    attend.check_machine(implementation, 512, 115)


@pytest.mark.parametrize("device", [Gpu("NVIDIA H100", "9.0"), Gpu("AMD Instinct MI300X", "gfx942")])
def test_machines_of_any_implementation(device, monkeypatch):
  monkeypatch.setattr(jax, "devices", lambda: [device])
  for implementation in ("xla", "cudnn", "pallas"):
    attend.check_machine(implementation, 512, 114)

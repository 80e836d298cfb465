"""The FLOP count against known figures and the compiler's own."""

import types

import jax
import pytest

from t5jax.model import config, flops
from t5jax.model.t5 import T5
from tests import tiny


def test_small_v1_1():
  """850 GFLOP a step at batch 8 and 512/114 tokens, counted independently for the benchmark's peers."""
  small = config.t5_1_1("small", vocab_size=32_128)
  assert flops.train_step_flops(small, 8, 512, 114) == pytest.approx(850e9, rel=0.02)


def test_against_the_compilers_count():
  """One layer a stack, so that no loop hides work; the rest of XLA's count is elementwise."""
  model = tiny.model(num_encoder_layers=1, num_decoder_layers=1, emb_dim=256, mlp_dim=512)
  batch = tiny.batch()
  tokens = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
  params = tiny.parameters(model)
  analysis = jax.jit(lambda p: T5(model).apply({"params": p}, *tokens)).lower(params).compile()
  counted = flops.train_step_flops(model, 8, tiny.INPUT_LENGTH, tiny.TARGET_LENGTH) / 3
  assert counted == pytest.approx(analysis.cost_analysis()["flops"], rel=0.05)


@pytest.mark.parametrize("kind, peak", [
    ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA H100 80GB HBM3", 989e12), ("TPU v5 lite", 197e12),
    ("TPU v5p", 459e12), ("Tesla T4", 65e12), ("cpu", None)])
def test_peaks(kind, peak):
  assert flops.peak_flops(types.SimpleNamespace(device_kind=kind)) == peak

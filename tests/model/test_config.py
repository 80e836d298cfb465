"""The presets against the published models, and what a configuration refuses."""

import jax
import pytest

from t5jax.model import config
from t5jax.state import abstract_params
from tests import tiny


@pytest.mark.parametrize("version, size, millions", [
    ("t5_1_0", "small", 60.5), ("t5_1_0", "base", 222.9), ("t5_1_0", "large", 737.7),
    ("t5_1_0", "xl", 2851.6), ("t5_1_0", "xxl", 11307.3),
    ("t5_1_1", "small", 76.96), ("t5_1_1", "base", 247.58), ("t5_1_1", "large", 783.2),
    ("t5_1_1", "xl", 2849.8), ("t5_1_1", "xxl", 11135.3)])
def test_number_of_parameters(version, size, millions):
  """As the published checkpoints on the hub (google-t5/t5-*, google/t5-v1_1-*)."""
  params = abstract_params(getattr(config, version)(size, vocab_size=32_128))
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6 == pytest.approx(millions, rel=2e-3)


@pytest.mark.parametrize("num_tokens, rows", [(32_100, 32_128), (8_100, 8_192), (256, 256), (1, 128)])
def test_the_embedding_covers_the_tokenizer_in_multiples_of_128(num_tokens, rows):
  assert tiny.model(vocab_size=None).with_vocabulary(num_tokens).vocab_size == rows


def test_a_tokenizer_that_does_not_fit_is_refused():
  with pytest.raises(ValueError, match="vocab_size = 256.*at least the tokenizer's 300"):
    tiny.model(vocab_size=256).with_vocabulary(300)
  assert tiny.model(vocab_size=512).with_vocabulary(300).vocab_size == 512


@pytest.mark.parametrize("setting, value", [
    ("emb_dim", 0), ("num_heads", "4"), ("dropout_rate", 1.0), ("dropout_rate", -0.1),
    ("dtype", "float16"), ("remat", "some"), ("head_init", "xavier"), ("mlp_activations", ("swish",)),
    ("mlp_activations", ()), ("relative_attention_num_buckets", 7),
    ("relative_attention_max_distance", 8), ("layer_norm_epsilon", 0.0), ("num_encoder_layers", 1.5),
    ("logits_via_embedding", 1)])
def test_wrong_values_are_refused_by_name(setting, value):
  with pytest.raises(ValueError, match=setting):
    tiny.model(**{setting: value})


@pytest.mark.parametrize("make, message", [
    (lambda: config.t5_1_1("huge"), "huge.*small"),
    (lambda: config.t5_1_1("base", num_layes=3), "num_layes.*num_heads|num_layes.*layers")])
def test_wrong_presets(make, message):
  with pytest.raises(ValueError, match=message):
    make()

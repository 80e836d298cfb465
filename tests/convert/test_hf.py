"""The mapping in both directions, and what an exported folder holds."""

import dataclasses
import json
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from t5jax.convert import hf
from t5jax.model.config import SIZES, t5_1_0, t5_1_1

FILES = ["config.json", "generation_config.json", "model.safetensors", "spiece.model",
         "tokenizer.json", "tokenizer_config.json"]


def assert_trees_equal(ours, theirs):
  assert jax.tree.structure(ours) == jax.tree.structure(theirs)
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def load_folder(folder):
  tensors = {}
  for path in folder.glob("*.safetensors"):
    tensors.update(load_file(path))
  return tensors


@pytest.mark.parametrize("changes", [
    dict(), dict(logits_via_embedding=True, mlp_activations=("relu",)), dict(num_decoder_layers=3)])
def test_round_trip_is_exact(config, make_params, changes):
  config = dataclasses.replace(config, **changes)
  params = make_params(config)
  tensors = hf.params_to_hf(params, config)
  assert_trees_equal(hf.params_from_hf(tensors, config), params)


def test_layout(config, params):
  tensors = hf.params_to_hf(params, config)
  wi_1 = params["encoder"]["layers"]["mlp"]["wi_1"]["kernel"]
  np.testing.assert_array_equal(tensors["encoder.block.1.layer.1.DenseReluDense.wi_1.weight"],
                                wi_1[1].T)
  np.testing.assert_array_equal(tensors["lm_head.weight"], params["logits_dense"]["kernel"].T)
  np.testing.assert_array_equal(tensors["shared.weight"], params["token_embedder"]["embedding"])
  assert "encoder.embed_tokens.weight" not in tensors


def test_mismatches_are_named(config, params):
  tensors = hf.params_to_hf(params, config)
  del tensors["lm_head.weight"]
  tensors["extra.weight"] = np.zeros(3)
  tensors["encoder.final_layer_norm.weight"] = np.zeros(7)
  with pytest.raises(ValueError) as error:
    hf.params_from_hf(tensors, config)
  for text in ("lm_head.weight is missing", "extra.weight is unexpected",
               "encoder.final_layer_norm.weight is [7], expected [32]"):
    assert text in str(error.value)
  with pytest.raises(ValueError, match="logits_dense/kernel is unexpected"):
    hf.params_to_hf(params, dataclasses.replace(config, logits_via_embedding=True))


def test_copies_of_the_embedding_are_accepted(config, params):
  tensors = hf.params_to_hf(params, config)
  copies = tensors | {"decoder.embed_tokens.weight": tensors["shared.weight"].copy()}
  assert_trees_equal(hf.params_from_hf(copies, config), params)
  other = tensors | {"decoder.embed_tokens.weight": 2 * tensors["shared.weight"]}
  with pytest.raises(ValueError, match="decoder.embed_tokens.weight is unexpected"):
    hf.params_from_hf(other, config)


@pytest.mark.parametrize("preset", [t5_1_0, t5_1_1])
@pytest.mark.parametrize("size", SIZES)
def test_config_round_trip(preset, size):
  config = preset(size, vocab_size=32128, dropout_rate=0.1)
  # How a run keeps its parameters between steps is no part of a published model.
  config = dataclasses.replace(config, param_precision="float32")
  assert hf.config_from_hf(hf.config_to_hf(config)) == config


def test_config_values(config):
  values = hf.config_to_hf(config, "bfloat16")
  assert values["feed_forward_proj"] == "gated-gelu" and values["tie_word_embeddings"] is False
  assert values["dtype"] == "bfloat16" and values["decoder_start_token_id"] == 0
  assert values["num_layers"] == 2 and values["num_decoder_layers"] == 1
  # Pretrained without dropout, to be fine-tuned with it.
  assert config.dropout_rate == 0 and values["dropout_rate"] == 0.1


def test_what_cannot_be_expressed_is_refused(config):
  with pytest.raises(ValueError, match="mlp_activations.*cannot be exported"):
    hf.config_to_hf(dataclasses.replace(config, mlp_activations=("gelu", "relu")))
  values = hf.config_to_hf(config)
  with pytest.raises(ValueError, match="feed_forward_proj = 'gated-silu'"):
    hf.config_from_hf(values | {"feed_forward_proj": "gated-silu"})
  with pytest.raises(ValueError, match="model_type = 'bert'"):
    hf.config_from_hf(values | {"model_type": "bert"})


def test_config_saved_by_transformers_5_is_understood(config):
  values = hf.config_to_hf(config) | {"tie_word_embeddings": True, "scale_decoder_outputs": False}
  assert not hf.config_from_hf(values).logits_via_embedding


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_folder(config, params, vocabulary_path, tmp_path, dtype):
  folder = tmp_path / "new" / "export"
  sizes = hf.export(params, config, vocabulary_path, folder, dtype=dtype)
  assert list(sizes) == FILES == sorted(path.name for path in folder.iterdir())
  assert [path.name for path in folder.parent.iterdir()] == ["export"]
  assert (folder / "spiece.model").read_bytes() == vocabulary_path.read_bytes()
  with safe_open(folder / "model.safetensors", "np") as file:
    assert file.metadata() == {"format": "pt"}
  tensors = load_folder(folder)
  expected = jax.tree.map(lambda x: x.astype(hf.DTYPES[dtype]).astype(np.float32), params)
  assert {tensor.dtype for tensor in tensors.values()} == {hf.DTYPES[dtype]}
  assert_trees_equal(hf.params_from_hf(tensors, config), expected)


def test_tied_tensors_are_stored_once(config, make_params, vocabulary_path, tmp_path):
  config = dataclasses.replace(config, logits_via_embedding=True)
  hf.export(make_params(config), config, vocabulary_path, tmp_path / "a")
  names = load_folder(tmp_path / "a")
  assert "shared.weight" in names
  assert not {"lm_head.weight", "encoder.embed_tokens.weight"} & names.keys()


def test_shards(config, params, vocabulary_path, tmp_path):
  folder, limit = tmp_path / "a", 20_000
  sizes = hf.export(params, config, vocabulary_path, folder, max_shard_size=limit)
  index = json.loads((folder / "model.safetensors.index.json").read_text())
  tensors = hf.params_to_hf(params, config)
  assert index["weight_map"].keys() == tensors.keys()
  assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
  shards = set(index["weight_map"].values())
  assert len(shards) > 3 and shards == {path.name for path in folder.glob("*.safetensors")}
  for shard in shards:
    loaded = load_file(folder / shard)
    assert len(loaded) == 1 or sum(tensor.nbytes for tensor in loaded.values()) <= limit
    assert all(index["weight_map"][name] == shard for name in loaded)
  assert_trees_equal(hf.params_from_hf(load_folder(folder), config), params)
  # A later export in one piece leaves none of them, and keeps the user's model card.
  (folder / "README.md").write_text("# Our model")
  sizes = hf.export(params, config, vocabulary_path, folder, max_shard_size="1GB")
  assert list(sizes) == ["README.md", *FILES]


@pytest.mark.parametrize("size, num_bytes", [(7, 7), ("500MB", 5 * 10**8), ("1.5 gb", 15 * 10**8)])
def test_sizes(size, num_bytes):
  assert hf.parse_size(size) == num_bytes


@pytest.mark.parametrize("size", [0, "", "5 apples", "-1MB", None])
def test_impossible_sizes(size):
  with pytest.raises(ValueError, match="max_shard_size"):
    hf.parse_size(size)


def test_foreign_files_are_left_alone(config, params, vocabulary_path, tmp_path):
  (tmp_path / "thesis.txt").write_text("precious")
  with pytest.raises(ValueError, match="thesis.txt"):
    hf.export(params, config, vocabulary_path, tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_nothing_half_written_is_left(config, params, vocabulary_path, tmp_path):
  folder = tmp_path / "a"
  hf.export(params, config, vocabulary_path, folder)
  before = {path.name: path.read_bytes() for path in folder.iterdir()}

  def fail(partial):
    assert partial != folder and sorted(path.name for path in partial.iterdir()) == FILES
    raise ValueError("not equal")

  with pytest.raises(ValueError, match="not equal"):
    hf.export(params, config, vocabulary_path, folder, dtype="bfloat16", check=fail)
  assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
  assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_wrong_arguments(config, params, vocabulary_path, tmp_path):
  with pytest.raises(ValueError, match="dtype = 'float16'"):
    hf.export(params, config, vocabulary_path, tmp_path / "a", dtype="float16")
  small = dataclasses.replace(config, vocab_size=128)
  params = params | {"token_embedder": {"embedding": np.zeros((128, 32))},
                     "logits_dense": {"kernel": np.zeros((32, 128))}}
  with pytest.raises(ValueError, match="vocab_size is 128"):
    hf.export(params, small, vocabulary_path, tmp_path / "a")
  assert not list(tmp_path.iterdir())


def test_bfloat16_rounds_to_nearest_even():
  values = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)  # Halfway between two neighbours.
  assert values.astype(ml_dtypes.bfloat16).tolist() == [1.0, 1 + 2**-6]


def test_export_needs_no_torch_and_no_transformers():
  code = ("import sys, t5jax.convert.hf, t5jax.convert.hub, t5jax.convert.verify; "
          "print({'torch', 'transformers', 'tensorflow'} & set(sys.modules))")
  result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
  assert result.stdout.strip() == "set()", result.stderr

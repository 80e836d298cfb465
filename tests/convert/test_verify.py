"""Verification passes for what was exported and fails, with the reason, for anything else."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from t5jax.convert import hf
from t5jax.convert.verify import verify
from tests.convert.test_tokenizer import lines

REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _needs_transformers():
  pytest.importorskip("torch")
  pytest.importorskip("transformers")


@pytest.fixture
def folder(params, config, vocabulary_path, tmp_path):
  """A float32 export of the tiny model."""
  hf.export(params, config, vocabulary_path, tmp_path / "export")
  return tmp_path / "export"


def change(path, **values):
  path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype, shard", [("float32", "5GB"), ("bfloat16", "20KB")])
def test_exports_pass(config, make_params, vocabulary_path, tmp_path, tied, dtype, shard):
  config = dataclasses.replace(config, logits_via_embedding=tied)
  params = make_params(config)
  hf.export(params, config, vocabulary_path, tmp_path / "a", dtype=dtype, max_shard_size=shard)
  figures = verify(tmp_path / "a", params, config, vocabulary_path, lines=lines())
  assert 0 < figures["max_logit_difference"] < 1e-5 * figures["max_logit"]
  assert figures["num_lines"] >= 1000 and figures["num_ties"] == 0
  assert figures["num_parameters"] == sum(
      tensor.size for tensor in hf.params_to_hf(params, config).values())


def test_other_weights(folder, params, config, vocabulary_path):
  params = params | {"logits_dense": {"kernel": params["logits_dense"]["kernel"] * 1.001}}
  with pytest.raises(ValueError, match="logits of transformers differ from ours"):
    verify(folder, params, config, vocabulary_path)


def test_weights_that_are_not_numbers(params, config, vocabulary_path, tmp_path):
  params = params | {"logits_dense": {"kernel": np.full((32, 512), np.nan, np.float32)}}
  hf.export(params, config, vocabulary_path, tmp_path / "a")
  with pytest.raises(ValueError, match="differ from ours by nan"):
    verify(tmp_path / "a", params, config, vocabulary_path)


def test_missing_weights(folder, params, config, vocabulary_path):
  tensors = load_file(folder / "model.safetensors")
  del tensors["encoder.final_layer_norm.weight"]
  hf.save_weights(tensors, folder)
  with pytest.raises(ValueError, match="missing_keys: encoder.final_layer_norm.weight"):
    verify(folder, params, config, vocabulary_path)


def test_a_head_that_came_out_tied(folder, params, config, vocabulary_path):
  tensors = load_file(folder / "model.safetensors")
  del tensors["lm_head.weight"]
  hf.save_weights(tensors, folder)
  with pytest.raises(ValueError, match="head that is tied, while logits_via_embedding = False"):
    verify(folder, params, config, vocabulary_path)


def test_another_tokenizer(folder, params, config, vocabulary_path):
  content = json.loads((folder / "tokenizer.json").read_text())
  content["normalizer"] = {"type": "Lowercase"}
  change(folder / "tokenizer.json", **content)
  with pytest.raises(ValueError, match="'Jeg bor i Danmark.*other ids in AutoTokenizer"):
    verify(folder, params, config, vocabulary_path)


def test_what_the_tokenizers_library_swallows_is_reported(folder, params, config, vocabulary_path):
  """A ligature with an accent: the library drops the accent, SentencePiece does not."""
  with pytest.raises(ValueError, match="'ﬁ\u0301' has other ids in AutoTokenizer"):
    verify(folder, params, config, vocabulary_path, lines=["ﬁ\u0301"])
  verify(folder, params, config, vocabulary_path, lines=["</s> og <extra_id_1> er ikke tekst"])


def test_absent_transformers(folder, params, config, vocabulary_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "transformers", None)
  with pytest.raises(ModuleNotFoundError, match=r"pip install 't5jax\[hf\]'"):
    verify(folder, params, config, vocabulary_path)


@pytest.fixture
def convert(params, config, vocabulary_path, tmp_path, monkeypatch, capsys):
  """Runs tools/convert_hf.py in this process: (*arguments) -> (exit status or message, output)."""
  from t5jax.tools import convert_hf

  (tmp_path / "spiece.model").write_bytes(vocabulary_path.read_bytes())
  monkeypatch.setattr(convert_hf, "load_params", lambda model_dir, step=None: (7, config, params))

  def run(*arguments):
    monkeypatch.setattr(sys, "argv", [
        "convert_hf", f"--model_dir={tmp_path}", f"--output_dir={tmp_path}/export", *arguments])
    try:
      convert_hf.main()
      status = 0
    except SystemExit as error:
      status = error.code
    return status, capsys.readouterr().out

  return run


def test_command_line(convert, tmp_path):
  status, output = convert("--dtype=bfloat16")
  assert status == 0 and (tmp_path / "export" / "model.safetensors").exists()
  assert "Step 7" in output and "model.safetensors" in output
  assert re.search(r"largest difference \d\.\d\de-\d+", output) and "with the same ids" in output
  status, output = convert("--skip_verification")
  assert status == 0 and "Not verified" in output


def test_command_line_leaves_nothing_that_fails(convert, tmp_path, monkeypatch):
  from t5jax.convert import verify as module

  monkeypatch.setattr(module, "_compare_logits", lambda *args: (_ for _ in ()).throw(
      ValueError("logits\ndiffer")))
  status, _ = convert()
  assert status == "convert_hf: logits differ" and not (tmp_path / "export").exists()


def test_command_line_without_a_run(tmp_path):
  result = subprocess.run(
      [sys.executable, "-m", "t5jax.tools.convert_hf", f"--model_dir={tmp_path}/none",
       f"--output_dir={tmp_path}/export"], cwd=REPOSITORY, capture_output=True, text=True,
      timeout=60)
  assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
  assert result.stderr.startswith("convert_hf: ") and not (tmp_path / "export").exists()


def test_tokens_added_to_an_export(folder, config, tmp_path):
  """As for fine-tuning in transformers: old ids stay, new ones come last, and all loads again."""
  import transformers

  load = lambda folder: (transformers.AutoTokenizer.from_pretrained(folder),
                         transformers.AutoModelForSeq2SeqLM.from_pretrained(folder))
  tokenizer, model = load(folder)
  text = "to små katte <extra_id_0>"
  ids, size = tokenizer(text).input_ids, len(tokenizer)
  assert tokenizer.add_tokens(["<sag>", "<svar>"]) == 2
  model.resize_token_embeddings(max(len(tokenizer), config.vocab_size))
  tokenizer.save_pretrained(tmp_path / "more")
  model.save_pretrained(tmp_path / "more")
  tokenizer, model = load(tmp_path / "more")
  assert tokenizer(text).input_ids == ids
  assert tokenizer.convert_tokens_to_ids(["<sag>", "<svar>"]) == [size, size + 1]
  assert tokenizer("<svar>").input_ids[0] == size + 1
  assert model.get_input_embeddings().weight.shape[0] >= len(tokenizer)

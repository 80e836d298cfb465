"""C4 from a tiny folder in its own layout, and what is said where it cannot be had."""

import gzip
import json
import time

import pytest

from t5jax.data.iterator import TaskData
from t5jax.data.text_files import DataError
from t5jax.settings import SettingError
from t5jax.tasks import c4
from tests.data.conftest import make_documents

LENGTHS = {"inputs": 64, "targets": 20}


@pytest.fixture
def c4_folder(tmp_path):
  folder = tmp_path / "en"
  folder.mkdir()
  for name, seed in (("c4-train.00000-of-01024", 0), ("c4-train.00001-of-01024", 1),
                     ("c4-validation.00000-of-00008", 2)):
    rows = [json.dumps({"text": d, "timestamp": "2019-04-25T12:57:54Z", "url": f"https://x/{i}"})
            for i, d in enumerate(make_documents(60, seed=seed))]
    (folder / f"{name}.json.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
  return folder


@pytest.fixture
def nothing_at_hand(tmp_path, monkeypatch):
  """No TFDS data, no cached files, and a hub that does not answer."""
  import huggingface_hub

  def refuse(*args, **kwargs):
    raise ConnectionError("Name or service not known")

  def not_cached(*args, **kwargs):
    raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")

  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
  monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", refuse)
  monkeypatch.setattr(huggingface_hub, "hf_hub_download", not_cached)


def test_a_folder_of_shards_trains(c4_folder, vocab_file, tmp_path):
  data = TaskData(c4.C4Corpus(directory=str(c4_folder), vocab_file=str(vocab_file)), LENGTHS, 4)
  data.check()
  data.prepare(tmp_path / "run")
  assert next(data.train_iterator())["encoder_input_tokens"].shape == (4, 64)
  assert data.eval_batches()
  import seqio

  task = seqio.get_mixture_or_task("c4_v220_span_corruption")
  assert len(task.source.list_shards("train")) == 2


def test_without_data_it_says_how_to_get_them(nothing_at_hand, vocab_file):
  begin = time.monotonic()
  with pytest.raises(DataError) as error:
    c4.C4Corpus(vocab_file=str(vocab_file)).check(LENGTHS)
  assert time.monotonic() - begin < 10
  for part in ("hf download allenai/c4", "C4_DIR", "TFDS_DATA_DIR", "text.gin", "not known"):
    assert part in str(error.value)


def test_without_vocabulary_it_says_how_to_get_one(nothing_at_hand, c4_folder):
  with pytest.raises(DataError, match="google/t5-v1_1-base.*vocab_file.*tools/train_vocab.py"):
    c4.C4Corpus(directory=str(c4_folder)).check(LENGTHS)


def test_an_empty_folder_is_refused(tmp_path):
  with pytest.raises(SettingError, match="C4Corpus.directory = .*c4-train"):
    c4.C4Corpus(directory=str(tmp_path)).check(LENGTHS)


def test_tfds_data_are_found(tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  for version in ("2.3.1", "3.1.0", "3.0.1"):
    (tmp_path / "c4" / "en" / version).mkdir(parents=True)
  (tmp_path / "c4/en/2.3.1/dataset_info.json").write_text("{}")
  (tmp_path / "c4/en/3.0.1/dataset_info.json").write_text("{}")
  assert c4._tfds_version() == "3.0.1"


def test_shards_are_fetched_from_the_hub_as_needed(c4_folder, vocab_file, tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
  shard = c4_folder / "c4-train.00000-of-01024.json.gz"
  rows = [json.dumps({"text": d}) for d in make_documents(5000)]
  shard.write_bytes(gzip.compress("\n".join(rows).encode()))
  asked = []

  def fetch(name):
    asked.append(name)
    return str(shard)

  monkeypatch.setattr(c4, "_fetch_shard", fetch)
  data = TaskData(c4.C4Corpus(vocab_file=str(vocab_file)), LENGTHS, 4, shuffle_buffer_size=5)
  data.prepare(tmp_path / "run")
  next(data.train_iterator())
  assert len(set(asked)) == 2 and all(name.startswith("en/c4-train.") for name in asked)

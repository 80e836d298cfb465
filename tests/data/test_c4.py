"""C4 from a tiny folder in its own layout, and what is said where it cannot be had."""

import time

import pytest

from t5jax.data.iterator import TaskData
from t5jax.data.text_files import DataError
from t5jax.settings import SettingError
from t5jax.tasks import c4
from t5jax.tasks.hub import newest_prepared
from tests.data import hub_mirror
from tests.data.conftest import make_documents
from tests.tasks import layouts
from tests.tasks.conftest import texts_of

LENGTHS = {"inputs": 64, "targets": 20}


@pytest.fixture
def c4_folder(tmp_path):
  folder = tmp_path / "en"
  for name, seed in (("c4-train.00000-of-01024", 0), ("c4-train.00001-of-01024", 1),
                     ("c4-validation.00000-of-00008", 2)):
    layouts.c4_shard(folder / f"{name}.json.gz", make_documents(60, seed=seed))
  return folder


@pytest.fixture
def nothing_at_hand(tmp_path, monkeypatch):
  """No TFDS data, nothing in the hub's cache, and a hub that does not answer."""
  import huggingface_hub
  from huggingface_hub import constants

  def refuse(*args, **kwargs):
    raise ConnectionError("Name or service not known")

  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", refuse)


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


def test_the_newest_tfds_data_are_taken(tmp_path, monkeypatch, vocab_file):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  for version in ("2.3.1", "3.0.1", "10.0.0"):
    texts = make_documents(80, seed=len(version))
    layouts.tfds(tmp_path, "c4", "en", version, {"train": texts + [""], "validation": texts[:5]},
                 layouts.C4_FEATURES)
  (tmp_path / "c4" / "en" / "11.0.0").mkdir()  # Not finished.
  assert newest_prepared("c4/en") == ("c4/en:10.0.0", str(tmp_path))
  data = TaskData(c4.C4Corpus(vocab_file=str(vocab_file)), LENGTHS, 4)
  data.check()
  data.prepare(tmp_path / "run")
  assert next(data.train_iterator())["encoder_input_tokens"].shape == (4, 64)
  assert sorted(texts_of(c4.C4Corpus(vocab_file=str(vocab_file)), "train")) == sorted(texts)


def test_shards_are_fetched_from_the_hub_as_needed(tmp_path, vocab_file, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
  large = make_documents(4000)  # Several blocks: more than is read before the first batch.
  for i in range(16):
    layouts.c4_shard(tmp_path / "c4" / "en" / f"c4-train.{i:05d}-of-00016.json.gz", large)
  layouts.c4_shard(tmp_path / "c4" / "en" / "c4-validation.00000-of-00001.json.gz",
                   make_documents(50))
  layouts.c4_shard(tmp_path / "c4" / "multilingual" / "c4-da.tfrecord-00000-of-1.json.gz", ["x"])
  with hub_mirror.serve(tmp_path / "c4", "allenai/c4", monkeypatch, tmp_path / "cache") as requests:
    data = TaskData(c4.C4Corpus(vocab_file=str(vocab_file)), LENGTHS, 4, shuffle_buffer_size=5)
    data.check()
    assert not any("resolve" in path for _, path in requests)
    data.prepare(tmp_path / "run")
    next(data.train_iterator())
    asked = {path.rpartition("/")[2] for _, path in requests if "resolve" in path}
  # Two are open, and as many and one more are fetched ahead.
  assert 1 <= len(asked) <= 5 and all(name.startswith("c4-train.") for name in asked)


def test_the_vocabulary_of_t5_comes_from_the_hub_once(c4_folder, vocab_file, tmp_path, monkeypatch):
  import huggingface_hub

  asked = []

  def download(repo_id, name, local_files_only=False):
    asked.append((repo_id, name))
    if local_files_only and len(asked) == 1:
      raise huggingface_hub.errors.LocalEntryNotFoundError("not yet")
    return str(vocab_file)

  monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
  monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda *args, **kwargs: None)
  corpus = c4.C4Corpus(directory=str(c4_folder))
  assert corpus.vocabulary_file(None) == str(vocab_file)
  assert set(asked) == {("google/t5-v1_1-base", "spiece.model")} and len(asked) == 2
  (tmp_path / "spiece.model").write_bytes(vocab_file.read_bytes())
  assert corpus.vocabulary_file(tmp_path) == str(tmp_path / "spiece.model")  # A resumed run's own.
  assert len(asked) == 2

"""Files of the hub: listed, pinned to a commit, fetched as they are read, errors with advice."""

import collections
import gzip
import json
import pickle
import threading

import pyarrow
import pyarrow.parquet
import pytest

from t5jax.data.hub_files import hub_files
from t5jax.data.text_files import DataError, TextFiles
from tests.data import hub_mirror
from tests.data.conftest import make_documents

REPO = "owner/corpus"


@pytest.fixture
def repository(tmp_path):
  """A folder with three compressed shards, one of validation, parquet, and a README."""
  folder = tmp_path / "repository"
  (folder / "da").mkdir(parents=True)
  (folder / "README.md").write_text("card")
  for i in range(3):
    rows = [json.dumps({"text": d, "url": "u"}) for d in make_documents(50, seed=i)]
    (folder / "da" / f"train-{i}.json.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
  (folder / "da" / "validation.json.gz").write_bytes(gzip.compress(b'{"text": "held out"}\n'))
  pyarrow.parquet.write_table(pyarrow.table({"text": ["one", "two"]}), folder / "da" / "a.parquet")
  return folder


@pytest.fixture
def mirror(repository, monkeypatch, tmp_path):
  with hub_mirror.serve(repository, REPO, monkeypatch, tmp_path / "hub") as requests:
    yield requests


def test_files_are_listed_at_once_and_fetched_when_read(mirror):
  files = hub_files(REPO, "da/train-*.json.gz")
  assert files.paths == tuple(f"hf://datasets/{REPO}@{hub_mirror.COMMIT}/da/train-{i}.json.gz"
                              for i in range(3))
  assert not any("resolve" in path for _, path in mirror)
  texts = list(files.iterate())
  assert texts == [d for i in range(3) for d in make_documents(50, seed=i)]
  count = len(mirror)
  assert list(pickle.loads(pickle.dumps(files)).iterate()) == texts
  assert len(mirror) == count, "a second pass reads the cache"


def test_parquet_and_lists_of_patterns(mirror):
  assert list(hub_files(REPO, ["*.parquet"]).iterate()) == ["one", "two"]
  assert len(hub_files(REPO, ["da/train-0*", "da/train-2*"]).paths) == 2


def test_a_pipeline_fetches_files_ahead_and_no_more_than_needed(tmp_path):
  import tensorflow as tf

  from t5jax.data.sources import TextSource

  fetched, third = set(), threading.Event()

  def fetch(name):
    fetched.add(name)
    if len(fetched) == 3:
      third.set()
    return str(tmp_path / name)

  names = tuple(f"{i}.txt" for i in range(20))
  for name in names:
    (tmp_path / name).write_text(f"{name}\n" * 2000)
  source = TextSource(TextFiles(names, fetch=fetch))
  options = tf.data.Options()
  options.autotune.enabled = False  # TensorFlow shall not read ahead by itself.
  options.experimental_optimization.inject_prefetch = False
  dataset = source.get_dataset("train", shuffle=False).with_options(options)
  iterator = dataset.as_numpy_iterator()
  assert next(iterator)["text"] == b"0.txt"
  assert third.wait(timeout=60), "one is open, the next two are on their way"
  assert len(fetched) == 3
  assert collections.Counter(row["text"].decode() for row in iterator) == (
      {name: 2000 - (name == names[0]) for name in names})


def test_a_pipeline_reads_the_hub(mirror):
  from t5jax.data.sources import TextSource

  source = TextSource(hub_files(REPO, "da/train-*"), hub_files(REPO, "da/validation*"))
  found = [x["text"].decode() for x in source.get_dataset("train", seed=3).as_numpy_iterator()]
  assert sorted(found) == sorted(d for i in range(3) for d in make_documents(50, seed=i))
  assert [x["text"] for x in source.get_dataset("validation").as_numpy_iterator()] == [b"held out"]


def test_problems_come_with_advice(mirror, repository, monkeypatch, tmp_path):
  with pytest.raises(DataError, match=f"{REPO}: has no files dan/.*; its folders are da."):
    hub_files(REPO, "dan/*")
  with pytest.raises(DataError, match="no/such: there is no such dataset"):
    hub_files("no/such", "*")
  files = hub_files(REPO, "da/train-1*")
  (repository / "da" / "train-1.json.gz").unlink()
  with pytest.raises(DataError, match="train-1.json.gz: cannot be fetched"):
    list(files.iterate())
  with hub_mirror.serve(repository, REPO, monkeypatch, tmp_path / "hub", status=403):
    with pytest.raises(DataError, match="is gated.*hf auth login.*HF_TOKEN"):
      hub_files(REPO, "*")
  from huggingface_hub import constants

  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  with pytest.raises(DataError, match="cannot be reached .is HF_HUB_OFFLINE set"):
    hub_files(REPO, "*")

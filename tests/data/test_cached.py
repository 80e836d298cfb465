"""The cache: every token once per epoch, any position at once, any hosts, killed and resumed."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from t5jax.data import cache, cached
from t5jax.data.iterator import TaskData
from t5jax.data.objectives import Objective
from t5jax.data.text_files import DataError
from t5jax.data.vocab_training import train_vocabulary
from t5jax.settings import SettingError
from t5jax.tasks.text import TextCorpus
from tests.data.conftest import make_documents
from tests.data.test_iterator import assert_same, register_mixture, take

LENGTHS = {"inputs": 64, "targets": 20}


@pytest.fixture
def make(corpus_file, vocab_file, tmp_path):
  """make(corpus settings=..., **settings) -> TaskData, cached and prepared."""

  def build(corpus=(), processes=1, **settings):
    task = TextCorpus(**{"files": str(corpus_file), "vocab_file": str(vocab_file),
                         "validation_fraction": 0.1, "name": "cached_text", **dict(corpus)})
    data = TaskData(**{"task": task, "feature_lengths": LENGTHS, "batch_size": 4,
                       "use_cached": True, "cache_dir": str(tmp_path / "cache"), **settings})
    cache.build(data, tmp_path / "cache", processes)
    data.check()
    data.prepare(tmp_path / "run")
    return data

  return build


class Plain(Objective):
  """Gives the segments themselves as inputs."""

  def longest_segment(self, feature_lengths):
    return feature_lengths["inputs"]

  def num_spans(self, length):
    return 0

  def corrupt(self, tokens, generators, vocabulary, feature_lengths):
    return tokens, tokens[:, :1]


def write_stream(folder, tokens, sizes):
  """A cache of given tokens in files of given sizes."""
  folder.mkdir(parents=True)
  parts, start = [], 0
  for i, size in enumerate(sizes):
    tokens[start:start + size].astype(np.uint16).tofile(folder / f"{i}.tokens")
    parts.append({"file": f"{i}.tokens", "num_tokens": size, "num_documents": 1})
    start += size
  info = {"task": "t", "split": "train", "vocabulary": "v", "dtype": "uint16", "parts": parts,
          "digest": "d"}
  (folder / "info.json").write_text(json.dumps(info))
  return cached.TokenStream(folder)


class FakeVocabulary:
  sha256, num_pieces, extra_ids, path = "v", 1 << 20, 100, "v.model"


def examples_of(stream, length, **settings):
  return cached.CachedExamples(stream, Plain(), FakeVocabulary(), {"inputs": length, "targets": 1},
                               **{"seed": 3, "shuffle": True, **settings})


def test_a_stream_is_read_across_its_files_and_around_its_end(tmp_path):
  tokens = np.arange(100)
  stream = write_stream(tmp_path / "a", tokens, [30, 1, 50, 19])
  for start, length in ((0, 100), (25, 40), (90, 30), (99, 1), (30, 1), (5, 250)):
    np.testing.assert_array_equal(stream.read(start, length), np.arange(start, start + length) % 100)


def test_an_epoch_holds_every_token_once_in_another_order_each_time(tmp_path):
  stream = write_stream(tmp_path / "a", np.arange(1000), [600, 400])
  examples = examples_of(stream, 10)
  assert examples.num_segments == 100
  orders = []
  for epoch in range(3):
    found = examples(np.arange(epoch * 100, (epoch + 1) * 100))
    assert set(found["epoch"]) == {epoch}
    assert sorted(found["inputs"].ravel()) == list(range(1000))
    assert ((found["inputs"] - found["inputs"][:, :1]) % 1000 == np.arange(10)).all()
    orders.append(found["inputs"][:, 0].tolist())
  assert orders[0] != orders[1] != orders[2]
  assert len({order[0] % 10 for order in orders}) > 1, "the cuts move from epoch to epoch"
  neighbours = np.abs(np.diff(orders[0]))
  assert np.median(neighbours) > 100, "shuffled globally, not within a window"


def test_what_does_not_fill_a_segment_moves(tmp_path):
  examples = examples_of(write_stream(tmp_path / "a", np.arange(95), [95]), 10)
  assert examples.num_segments == 9
  left_out = set()
  for epoch in range(30):
    tokens = examples(np.arange(epoch * 9, epoch * 9 + 9))["inputs"].ravel().tolist()
    assert len(set(tokens)) == 90
    left_out |= set(range(95)) - set(tokens)
  assert len(left_out) > 60


def test_a_text_shorter_than_a_segment_is_one_example(tmp_path):
  examples = examples_of(write_stream(tmp_path / "a", np.arange(7), [7]), 10)
  found = examples([0, 1])
  assert found["epoch"].tolist() == [0, 1]
  assert sorted(found["inputs"][0]) == [-1, -1, -1, 0, 1, 2, 3, 4, 5, 6]


def test_unshuffled_examples_follow_the_text(tmp_path):
  examples = examples_of(write_stream(tmp_path / "a", np.arange(100), [100]), 10, shuffle=False)
  np.testing.assert_array_equal(examples(np.arange(10))["inputs"].ravel(), np.arange(100))


def test_tokens_are_those_of_the_online_task(make, corpus_file, vocabulary):
  data = make()
  texts = data.task.source().documents("train")
  stream = cached.TokenStream(pathlib.Path(data.cache_dir) / "cached_text" / "train")
  np.testing.assert_array_equal(stream.read(0, stream.num_tokens),
                                [i for text in texts for i in vocabulary.encode(text)])


def test_two_processes_cache_the_same_documents(make, corpus_file, vocabulary, tmp_path):
  data = make(processes=2)
  folder = tmp_path / "cache" / "cached_text" / "train"
  stream = cached.TokenStream(folder)
  assert len(stream.info["parts"]) == 2 and all(p["num_tokens"] for p in stream.info["parts"])
  expected = sorted(i for text in data.task.source().documents("train")
                    for i in vocabulary.encode(text))
  np.testing.assert_array_equal(np.sort(stream.read(0, stream.num_tokens)), expected)


def test_batches_are_what_the_model_takes(make):
  batch = next(make().train_iterator())
  assert {name: (x.shape, x.dtype.name) for name, x in batch.items()} == {
      "encoder_input_tokens": ((4, 64), "int32"), "decoder_target_tokens": ((4, 20), "int32"),
      "decoder_input_tokens": ((4, 20), "int32"), "decoder_loss_weights": ((4, 20), "float32"),
      "epoch": ((4,), "int32")}
  assert (batch["encoder_input_tokens"] != 0).all()  # Every segment is full.


def test_resuming_far_away_is_at_once_and_exact(make, tmp_path):
  data = make()
  iterator = data.train_iterator()
  iterator._seek(100_000 * 4)
  next(iterator)
  iterator.save(tmp_path / "position")
  expected = take(iterator, 3)
  other = data.train_iterator()
  take(other, 2)
  began = time.monotonic()
  other.restore(tmp_path / "position")
  found = take(other, 3)
  assert time.monotonic() - began < 1
  assert_same(found, expected)
  assert other.epoch == iterator.epoch > 1000
  assert [p.name for p in tmp_path.glob("position*")] == ["position.json"]


def test_an_uninterrupted_run_sees_the_same_batch(make):
  """Position n is the same whether it was reached or sought."""
  data = make()
  reached, sought = data.train_iterator(), data.train_iterator()
  expected = take(reached, 60)[-1:]
  sought._seek(59 * 4)
  assert_same(take(sought, 1), expected)


def test_any_number_of_hosts_shares_the_stream(make, tmp_path):
  data = make()
  one = data.train_iterator()
  hosts = [data.train_iterator([host], 2) for host in range(2)]
  for _ in range(5):
    whole, parts = next(one), [next(host) for host in hosts]
    for name in whole:
      np.testing.assert_array_equal(whole[name], np.concatenate([p[name] for p in parts]))
  hosts[1].save(tmp_path / "position")
  one.restore(tmp_path / "position")  # Two hosts before, one now.
  np.testing.assert_array_equal(next(one)["epoch"][2:], next(hosts[1])["epoch"])


def test_eval_batches_are_one_pass_over_the_validation_split(make):
  data = make(eval_batch_size=8, num_eval_batches=1000)
  batches = data.eval_batches()
  assert_same(batches, make(eval_batch_size=8, num_eval_batches=1000, seed=5).eval_batches())
  stream = cached.TokenStream(pathlib.Path(data.cache_dir) / "cached_text" / "validation")
  length = data.task.objective.segment_length(LENGTHS, 100)
  rows = sum((b["decoder_loss_weights"].sum(axis=1) > 0).sum() for b in batches)
  assert rows == stream.num_tokens // length


def test_missing_and_unfitting_caches_are_named(make, tmp_path, corpus_file, vocab_file):
  with pytest.raises(SettingError, match="cache_dir = None"):
    TaskData("t", LENGTHS, 4, use_cached=True)
  data = TaskData(TextCorpus(files=str(corpus_file), vocab_file=str(vocab_file)), LENGTHS, 4,
                  use_cached=True, cache_dir=str(tmp_path))
  with pytest.raises(DataError, match="no cache of task 'text'.*tools/cache_task.py"):
    data.check()
  data = make()
  folder = tmp_path / "cache" / "cached_text"
  (folder / "validation" / "info.json").unlink()
  with pytest.raises(DataError, match="validation: holds no finished cache.*tools/cache_task.py"):
    data.eval_batches()
  tokens, = (folder / "train").glob("*.tokens")
  tokens.write_bytes(b"\xff" * tokens.stat().st_size)
  with pytest.raises(DataError, match="is damaged: it holds the id 65535"):
    next(data.train_iterator())
  os.truncate(tokens, 100)
  with pytest.raises(DataError, match="another size. Delete"):
    data.train_iterator()


def test_checking_looks_into_the_caches(make, tmp_path, corpus_file):
  data = make()
  data.check_cache()
  other = tmp_path / "other.model"
  train_vocabulary(make_documents(400), other, 350)
  task = dataclasses.replace(data.task, vocab_file=str(other))
  with pytest.raises(DataError, match="'cached_text' was made with another vocabulary"):
    dataclasses.replace(data, task=task).check_cache()
  text = corpus_file.read_text(encoding="utf-8")
  corpus_file.write_text(text + "one more line\n", encoding="utf-8")
  with pytest.raises(DataError, match="is of other text"):
    data.check_cache()
  folder = tmp_path / "cache" / "cached_text"
  (folder / "validation" / "info.json").unlink()
  corpus_file.write_text(text, encoding="utf-8")
  with pytest.raises(DataError, match="validation: holds no finished cache"):
    data.check_cache()
  (folder / "spiece.model").unlink()
  with pytest.raises(DataError, match="no cache of task 'cached_text'"):
    data.check_cache()
  dataclasses.replace(data, use_cached=False, cache_dir=None).check_cache()


def test_a_changed_text_is_not_taken_for_the_cached_one(make, corpus_file):
  make()
  corpus_file.write_text("\n".join(make_documents(120)), encoding="utf-8")
  with pytest.raises(DataError, match="is a cache with another source. Delete the folder"):
    make()


def test_a_position_of_another_cache_is_refused(make, tmp_path):
  iterator = make().train_iterator()
  next(iterator)
  iterator.save(tmp_path / "position")
  with pytest.raises(DataError, match="seed: 0 then, 9 now"):
    make(seed=9).train_iterator().restore(tmp_path / "position")


def test_finished_caches_are_left_alone(make, tmp_path):
  make()
  files = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*.tokens")}
  make()
  assert len(files) == 2 and files == {p: p.stat().st_mtime_ns for p in files}


BUILD = """
import sys
from t5jax.data import cache, iterator
from t5jax.tasks.text import TextCorpus
cache._NOTE_SECONDS = 0.0
task = TextCorpus(files=sys.argv[1], vocab_file=sys.argv[2], validation_fraction=0.1)
cache.build(iterator.TaskData(task, {"inputs": 64, "targets": 20}, 4), sys.argv[3])
"""


def test_a_killed_build_goes_on_and_ends_the_same(tmp_path, vocab_file):
  """SIGKILL once a position has been noted; the second try must not begin anew."""
  text = tmp_path / "corpus.txt"
  text.write_text("\n".join(make_documents(6000)) + "\n", encoding="utf-8")

  def start(folder):
    return subprocess.Popen([sys.executable, "-c", BUILD, text, vocab_file, tmp_path / folder],
                            stderr=subprocess.DEVNULL)

  assert start("straight").wait(timeout=120) == 0
  killed, deadline = start("killed"), time.monotonic() + 100
  train = tmp_path / "killed" / "text" / "train"
  while not list(train.glob("*.position.json")) and time.monotonic() < deadline:
    time.sleep(0.005)
  killed.send_signal(signal.SIGKILL)
  killed.wait()
  note, = train.glob("*.position.json")
  assert json.loads(note.read_text())["num_tokens"] > 0 and not (train / "info.json").exists()
  assert start("killed").wait(timeout=120) == 0
  for path in (tmp_path / "straight").rglob("*"):
    if path.is_file():
      assert path.read_bytes() == (tmp_path / "killed" / path.relative_to(
          tmp_path / "straight")).read_bytes()
  assert not list(train.glob("*position*"))


def test_mixtures_of_caches(make, tmp_path, vocab_file):
  register_mixture(make, tmp_path, "pair", {"first": 3.0, "second": 1.0})
  data = TaskData("pair", LENGTHS, 4, use_cached=True, cache_dir=str(tmp_path / "cache"))
  cache.build(data, tmp_path / "cache")
  data.check()
  data.prepare(tmp_path / "run")
  iterator = data.train_iterator()
  take(iterator, 7)
  iterator.save(tmp_path / "position")
  expected = take(iterator, 5)
  again = data.train_iterator()
  again.restore(tmp_path / "position")
  assert_same(take(again, 5), expected)
  assert data.eval_batches()


def test_tasks_with_other_steps_are_told_of_seqios_cache(vocabulary, corpus_file, tmp_path):
  import seqio

  from t5jax.data.sources import TextSource
  from t5jax.data.text_files import TextFiles

  if "foreign" not in seqio.TaskRegistry.names():
    feature = seqio.Feature(vocabulary.seqio())
    seqio.TaskRegistry.add("foreign", source=TextSource(TextFiles((str(corpus_file),))),
                           preprocessors=[seqio.preprocessors.tokenize],
                           output_features={"inputs": feature, "targets": feature})
  data = TaskData("foreign", LENGTHS, 4)
  with pytest.raises(DataError, match="'foreign'.*seqio_cache_tasks"):
    cache.build(data, tmp_path / "cache")

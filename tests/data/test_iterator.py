"""Batches, their position and their determinism; hosts; errors before and behind TensorFlow."""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from t5jax.data import features
from t5jax.data.iterator import TaskData
from t5jax.data.objectives import SpanCorruption
from t5jax.data.spans import random_spans_helper
from t5jax.data.text_files import DataError
from t5jax.settings import SettingError
from t5jax.tasks.demo import demo_corpus
from t5jax.tasks.text import TextCorpus
from tests.data.conftest import make_documents

LENGTHS = {"inputs": 64, "targets": 20}


@pytest.fixture
def make(corpus_file, vocab_file, tmp_path):
  """make(corpus settings=..., **settings) -> TaskData, prepared."""

  def build(corpus=(), **settings):
    task = TextCorpus(**{"files": str(corpus_file), "vocab_file": str(vocab_file),
                         "validation_fraction": 0.1, **dict(corpus)})
    data = TaskData(**{"task": task, "feature_lengths": LENGTHS, "batch_size": 4,
                       "shuffle_buffer_size": 20, **settings})
    data.check()
    data.prepare(tmp_path / "run")
    return data

  return build


def take(iterator, count):
  return [next(iterator) for _ in range(count)]


def assert_same(first, second):
  assert len(first) == len(second)
  for a, b in zip(first, second):
    assert a.keys() == b.keys()
    for name in a:
      np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_batches_are_what_the_model_takes(make, vocabulary):
  batch = next(make().train_iterator())
  assert {name: (x.shape, x.dtype.name) for name, x in batch.items()} == {
      "encoder_input_tokens": ((4, 64), "int32"), "decoder_target_tokens": ((4, 20), "int32"),
      "decoder_input_tokens": ((4, 20), "int32"), "decoder_loss_weights": ((4, 20), "float32"),
      "epoch": ((4,), "int32")}
  targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
  for row in range(4):
    end = int(weights[row].sum())
    assert targets[row, end - 1] == 1 and not targets[row, end:].any()
    assert targets[row, 0] == vocabulary.sentinel_id(0)
  np.testing.assert_array_equal(batch["decoder_input_tokens"][:, 1:], targets[:, :-1])
  assert not batch["decoder_input_tokens"][:, 0].any()


def test_weights_go_by_position_not_by_id():
  batch = features.to_model_batch({"inputs": np.array([[5, 0, 1, -1]]),
                                   "targets": np.array([[7, 0, 1, -1]])})
  np.testing.assert_array_equal(batch["decoder_loss_weights"], [[1, 1, 1, 0]])
  np.testing.assert_array_equal(batch["encoder_input_tokens"], [[5, 0, 1, 0]])
  np.testing.assert_array_equal(batch["decoder_input_tokens"], [[0, 7, 0, 1]])


def test_same_seed_same_batches_other_seed_others(make):
  first, second, other = (take(make(seed=s).train_iterator(), 12) for s in (1, 1, 2))
  assert_same(first, second)
  assert any((a["encoder_input_tokens"] != b["encoder_input_tokens"]).any()
             for a, b in zip(first, other))


def splice(inputs, targets):
  """The tokens behind one example; sentinels are 400 and above, 0 and 1 are pad and EOS."""
  spans, current = {}, None
  for token in targets:
    if token >= 400:
      current = spans.setdefault(token, [])
    elif token > 1:
      current.append(token)
  return [t for token in inputs if token > 1 for t in spans.get(token, [token])]


def test_masks_differ_from_epoch_to_epoch(make, tmp_path, vocabulary):
  """Documents of exactly one segment: each pass has the same tokens under other masks."""
  length = random_spans_helper(LENGTHS["inputs"])[0]
  pieces = [vocabulary.decode([i]) for i in range(3, vocabulary.num_pieces)]
  words = [piece for piece in pieces if len(vocabulary.encode(piece)) == 1][:50]
  texts = [" ".join(words[(i * j) % len(words)] for j in range(length)) for i in range(1, 7)]
  assert {len(vocabulary.encode(text)) for text in texts} == {length}
  (tmp_path / "even.txt").write_text("\n".join(texts), encoding="utf-8")
  iterator = make(corpus={"files": str(tmp_path / "even.txt"), "validation_fraction": 0.0},
                  batch_size=6, shuffle_buffer_size=1).train_iterator()
  batches = take(iterator, 2)
  first, second = (
      [splice(row, targets) for row, targets in zip(b["encoder_input_tokens"].tolist(),
                                                    b["decoder_target_tokens"].tolist())]
      for b in batches)
  assert first == second == [vocabulary.encode(text) for text in texts]
  assert [int(b["epoch"].max()) for b in batches] == [0, 1]
  for a, b in zip(*(batch["encoder_input_tokens"].tolist() for batch in batches)):
    assert a != b


def test_epochs_are_counted_from_zero(make):
  iterator = make(shuffle_buffer_size=1).train_iterator()
  epochs = []
  for _ in range(60):
    next(iterator)
    epochs.append(iterator.epoch)
  assert epochs[0] == 0 and epochs == sorted(epochs) and epochs[-1] >= 2
  assert all(b - a <= 1 for a, b in zip(epochs, epochs[1:]))


@pytest.mark.parametrize("position", [0, 7, 40])
def test_restoring_gives_the_very_next_batch(make, tmp_path, position):
  data = make()
  iterator = data.train_iterator()
  take(iterator, position)
  iterator.save(tmp_path / "position")
  expected, epoch = take(iterator, 40), iterator.epoch
  assert len({int(b["epoch"].max()) for b in expected}) > 1
  other = data.train_iterator()
  take(other, 3)
  other.restore(tmp_path / "position")
  assert_same(take(other, 40), expected)
  assert other.epoch == epoch


@pytest.mark.parametrize("suffix", [pytest.param(".txt", marks=pytest.mark.slow), ".jsonl.gz"])
def test_restoring_in_a_new_process_with_large_files(make, tmp_path, vocab_file, suffix):
  import gzip

  documents = make_documents(3000)
  lines = documents if suffix == ".txt" else [json.dumps({"text": d}) for d in documents]
  text = "\n".join(lines).encode()
  path = tmp_path / f"large{suffix}"
  path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
  settings = dict(files=str(path), vocab_file=str(vocab_file))
  iterator = make(settings).train_iterator()
  take(iterator, 60)
  iterator.save(tmp_path / "position")
  expected = take(iterator, 3)
  program = f"""
import sys
from t5jax.data.iterator import TaskData
from t5jax.data.spans import random_spans_helper
from t5jax.tasks.text import TextCorpus
data = TaskData(TextCorpus(validation_fraction=0.1, **{settings!r}), {LENGTHS!r}, 4,
                shuffle_buffer_size=20)
data.prepare({str(tmp_path / 'run')!r})
iterator = data.train_iterator()
iterator.restore({str(tmp_path / 'position')!r})
for _ in range(3):
  sys.stdout.buffer.write(next(iterator)["encoder_input_tokens"].tobytes())
"""
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
  assert done.returncode == 0, done.stderr.decode()
  assert done.stdout == b"".join(b["encoder_input_tokens"].tobytes() for b in expected)


def test_a_changed_pipeline_is_refused_by_name(make, tmp_path, corpus_file):
  iterator = make().train_iterator()
  next(iterator)
  iterator.save(tmp_path / "position")
  for settings, problem in (({"seed": 5}, "seed: 0 then, 5 now"),
                            ({"batch_size": 8}, "batch_size: 4 then, 8 now")):
    with pytest.raises(DataError, match=problem):
      make(**settings).train_iterator().restore(tmp_path / "position")
  corpus_file.write_text("\n".join(make_documents(120)), encoding="utf-8")
  with pytest.raises(DataError, match="files: .*corpus.txt"):
    make().train_iterator().restore(tmp_path / "position")
  with pytest.raises(DataError, match="none: holds no position"):
    make().train_iterator().restore(tmp_path / "none")


def test_eval_batches_do_not_depend_on_the_seed(make):
  batches = make(eval_batch_size=8, seed=3).eval_batches()
  assert_same(batches, make(eval_batch_size=8).eval_batches())
  assert batches[0]["decoder_target_tokens"].shape == (8, 20)
  assert batches[-1]["decoder_loss_weights"][-1].sum() == 0  # filled up


def test_hosts_share_the_batches_and_positions_of_one(make, tmp_path):
  data = make(corpus={"validation_fraction": 0.0})
  one = data.train_iterator()
  first, second = (data.train_iterator(shards, 4) for shards in ([0, 2], [1, 3]))
  for whole, a, b in zip(take(one, 10), take(first, 10), take(second, 10)):
    for name in whole:
      np.testing.assert_array_equal(whole[name][[0, 2]], a[name])
      np.testing.assert_array_equal(whole[name][[1, 3]], b[name])
  second.save(tmp_path / "position")
  one.restore(tmp_path / "position")  # Two hosts before, one now.
  np.testing.assert_array_equal(next(one)["encoder_input_tokens"][[0, 2]],
                                next(first)["encoder_input_tokens"])
  with pytest.raises(SettingError, match="batch_size = 4.*multiple of the 3 parts"):
    data.train_iterator([0], 3)
  with pytest.raises(DataError, match="no split 'validation'"):
    data.eval_batches()


def test_held_out_documents_are_not_trained_on(make, corpus_file):
  import seqio

  source = seqio.get_mixture_or_task(make().task.name).source
  train, validation = ({x["text"].decode() for x in source.get_dataset(split).as_numpy_iterator()}
                       for split in ("train", "validation"))
  assert train and validation and not train & validation
  assert train | validation == set(corpus_file.read_text(encoding="utf-8").splitlines())


def test_unigram_entropy():
  batch = {"decoder_target_tokens": np.array([[5, 6, 5, 6, 0]]),
           "decoder_loss_weights": np.array([[1, 1, 1, 1, 0]], np.float32)}
  assert features.unigram_entropy([batch, batch]) == pytest.approx(np.log(2))


def register_mixture(make, folder, name, rates):
  """A seqio mixture of two corpora made by a `make` fixture, the second of a text of its own."""
  import seqio

  first, second = rates
  make(corpus={"name": first})
  (folder / "two.txt").write_text("\n".join(make_documents(50, seed=9)), encoding="utf-8")
  make(corpus={"name": second, "files": str(folder / "two.txt")})
  if name in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.remove(name)
  seqio.MixtureRegistry.add(name, list(rates.items()))


def test_mixtures(make, tmp_path, vocab_file):
  register_mixture(make, tmp_path, "both", {"one": 1.0, "two": 1.0})
  data = TaskData("both", LENGTHS, 4)
  assert data.prepare(tmp_path / "run").path == str(tmp_path / "run" / "spiece.model")
  iterator = data.train_iterator()
  take(iterator, 2)
  iterator.save(tmp_path / "position")
  expected = take(iterator, 5)
  again = data.train_iterator()
  again.restore(tmp_path / "position")
  assert_same(take(again, 5), expected)
  assert data.eval_batches()


def test_unknown_tasks_and_modules_are_named(make, tmp_path):
  make(corpus={"name": "my_text"})
  with pytest.raises(SettingError, match="TaskData.task = 'my_test'.*'my_text'"):
    TaskData("my_test", LENGTHS, 4).prepare(tmp_path)
  with pytest.raises(SettingError, match="TaskData.module = 'no.such.module'"):
    TaskData("my_text", LENGTHS, 4, module="no.such.module").check()
  with pytest.raises(SettingError, match="TaskData.feature_lengths.*'targets'"):
    TaskData("my_text", {"inputs": 3}, 4)
  with pytest.raises(SettingError, match="feature_lengths = 'input' .*Did you mean 'inputs'"):
    TaskData("my_text", {"input": 3, "targets": 3}, 4)
  with pytest.raises(SettingError, match="batch_size = 0"):
    TaskData("my_text", LENGTHS, 0)
  with pytest.raises(SettingError, match=r"TaskData.task = .*@text.TextCorpus\(\), with the br"):
    TaskData(TextCorpus, LENGTHS, 4)


def test_wrong_preprocessors_are_named(output_features_of, tmp_path):
  import seqio

  from t5jax.data import preprocessors
  from t5jax.data.sources import TextSource
  from t5jax.data.text_files import TextFiles

  (tmp_path / "a.txt").write_text("text\nmore", encoding="utf-8")
  source = TextSource(TextFiles((str(tmp_path / "a.txt"),)))
  pretrain = functools.partial(preprocessors.pretrain, objective=SpanCorruption())
  for name, steps, problem in (
      ("wrong_order", [pretrain, pretrain], "'wrong_order'.*step pretrain: expected feature 'text'"
       ".*present: 'inputs' of int32"),
      ("no_inputs", [], "'no_inputs'.*inputs")):
    if name not in seqio.TaskRegistry.names():
      seqio.TaskRegistry.add(name, source=source, preprocessors=steps,
                             output_features=output_features_of)
    with pytest.raises(DataError, match=problem):
      TaskData(name, LENGTHS, 4).train_iterator()


def test_data_without_a_position_is_refused_with_the_first_batch(output_features_of):
  import seqio
  import tensorflow as tf

  def generated(split, shuffle_files, seed=None):
    del split, shuffle_files, seed
    shapes = {name: tf.TensorSpec([None], tf.int32) for name in LENGTHS}
    return tf.data.Dataset.from_generator(
        lambda: iter([{"inputs": [5], "targets": [5]}] * 4), output_signature=shapes)

  if "generated" not in seqio.TaskRegistry.names():
    seqio.TaskRegistry.add("generated", source=seqio.FunctionDataSource(generated, ["train"]),
                           preprocessors=[], output_features=output_features_of)
  with pytest.raises(DataError, match="position cannot be saved .PyFunc is stateful.* read files"):
    next(TaskData("generated", LENGTHS, 4).train_iterator())


@pytest.fixture
def output_features_of(vocabulary):
  import seqio

  feature = seqio.Feature(vocabulary.seqio())
  return {"inputs": feature, "targets": feature}


def test_a_bad_row_behind_tensorflow_is_one_clean_line(make, tmp_path):
  path = tmp_path / "late.jsonl"
  rows = [json.dumps({"text": d}) for d in make_documents(3000)]
  path.write_text("\n".join(rows[:2500] + ['{"txt": 1}'] + rows[2500:]), encoding="utf-8")
  iterator = make(corpus={"files": str(path)}).train_iterator()
  with pytest.raises(DataError) as error:
    take(iterator, 2000)
  assert str(error.value) == (f"{path}, line 2501: no field 'text'; the row has 'txt'. "
                              "Did you mean 'txt'?")


def test_vocabulary_is_trained_once_and_kept(corpus_file, tmp_path):
  data = TaskData(TextCorpus(files=str(corpus_file), vocab_size=250), LENGTHS, 4)
  vocabulary = data.prepare(tmp_path)
  assert vocabulary.num_pieces == 250 and vocabulary.sha256 == data.prepare(tmp_path).sha256
  other = TaskData(TextCorpus(files=str(corpus_file), vocab_size=240), LENGTHS, 4)
  with pytest.raises(SettingError, match="vocab_size = 240.*250, the size of"):
    other.prepare(tmp_path)


def test_another_vocabulary_in_the_folder_is_refused(make, corpus_file, tmp_path):
  TaskData(TextCorpus(files=str(corpus_file), vocab_size=250), LENGTHS, 4).prepare(tmp_path / "run")
  with pytest.raises(DataError, match="is another vocabulary"):
    make()


def test_checking_needs_no_tensorflow(corpus_file, vocab_file, tmp_path):
  program = f"""
import sys, time
from t5jax.data.iterator import TaskData
from t5jax.data.spans import random_spans_helper
from t5jax.tasks import c4, demo, text
begin = time.monotonic()
corpus = text.TextCorpus(files={str(corpus_file)!r}, vocab_file={str(vocab_file)!r})
TaskData(corpus, {LENGTHS!r}, 4).check()
TaskData(demo.demo_corpus(), {LENGTHS!r}, 4).check()
assert time.monotonic() - begin < 1
assert not {{"tensorflow", "seqio", "jax"}} & set(sys.modules)
"""
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
  assert done.returncode == 0, done.stderr


def test_demo_corpus_is_there():
  demo_corpus().check({"inputs": 128, "targets": 29})


def test_memory_does_not_grow(make, tmp_path):
  (tmp_path / "big.txt").write_text("\n".join(make_documents(20000)), encoding="utf-8")
  iterator = make(corpus={"files": str(tmp_path / "big.txt")}, batch_size=8,
                  shuffle_buffer_size=1000).train_iterator()
  take(iterator, 300)
  before = _resident_bytes()
  for _ in range(1500):
    next(iterator)
  assert _resident_bytes() < 1.1 * before


def _resident_bytes():
  with open("/proc/self/statm", encoding="ascii") as stream:
    return int(stream.read().split()[1]) * 4096

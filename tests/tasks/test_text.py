"""Corpora of one's own files: formats, settings, vocabulary, registration."""

import dataclasses
import gzip
import json

import pytest

from t5jax.data.objectives import IidDenoising, ul2
from t5jax.data.text_files import DataError
from t5jax.settings import SettingError
from t5jax.tasks.text import TextCorpus, TFRecordCorpus
from tests.data.conftest import make_documents
from tests.tasks import layouts
from tests.tasks.conftest import LENGTHS, texts_of

TEXTS = make_documents(120)
MORE = make_documents(40, seed=1)


def zstd(data):
  import pyarrow

  return pyarrow.compress(data, codec="zstd", asbytes=True)


def write(path, texts):
  """Writes documents in the format that the name of a file says."""
  if path.suffix == ".parquet":
    return layouts.parquet(path, texts, id=lambda i: i)
  if ".csv" in path.name:
    data = "id,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(texts))
  elif ".jsonl" in path.name:
    data = "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts))
  else:
    data = "\n".join(texts)
  pack = {".gz": gzip.compress, ".zst": zstd}.get(path.suffix, bytes)
  path.write_bytes(pack(data.encode()))
  return None


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.csv.zst",
                                  "a.parquet"])
def test_formats(tmp_path, check, vocab_file, name):
  write(tmp_path / name, TEXTS)
  write(tmp_path / f"held_out_{name}", MORE)
  settings = dict(files=str(tmp_path / name), vocab_file=str(vocab_file))
  check(TextCorpus(**settings), TEXTS)
  check(TextCorpus(**settings, validation_files=str(tmp_path / f"held_out_{name}")), TEXTS, MORE)


def test_a_document_a_file(tmp_path, check, vocab_file):
  for i, text in enumerate(TEXTS):
    (tmp_path / f"{i}.txt").write_text(text.replace(" ", "\n\n", 1), encoding="utf-8")
  check(TextCorpus(str(tmp_path / "*.txt"), documents="file", vocab_file=str(vocab_file)),
        [text.replace(" ", "\n\n", 1) for text in TEXTS])


def test_what_cannot_be_read_is_skipped_on_request(tmp_path, check, vocab_file):
  rows = [json.dumps({"text": text}) for text in TEXTS]
  (tmp_path / "a.jsonl").write_text("\n".join(rows[:60] + ['{"text": null}'] + rows[60:]))
  settings = dict(files=str(tmp_path / "a.jsonl"), vocab_file=str(vocab_file))
  check(TextCorpus(**settings, on_error="skip"), TEXTS)
  with pytest.raises(DataError, match="a.jsonl, line 61"):
    list(TextCorpus(**settings).training_text().iterate())


def test_text_of_which_none_can_be_held_out_is_refused_at_once(tmp_path, vocab_file):
  (tmp_path / "a.txt").write_text("one\none\n")
  (tmp_path / "b.txt").write_text("two\n")
  settings = dict(files=str(tmp_path / "a.txt"), vocab_file=str(vocab_file))
  with pytest.raises(DataError, match="fewer than two different documents.*set validation_files"):
    TextCorpus(**settings).check(LENGTHS)
  TextCorpus(**settings, validation_fraction=0.0).check(LENGTHS)
  TextCorpus(**settings, validation_files=str(tmp_path / "b.txt")).check(LENGTHS)
  TextCorpus(**{**settings, "files": str(tmp_path / "*.txt")}).check(LENGTHS)


def test_tfrecord(tmp_path, check, vocab_file):
  for i in range(3):
    layouts.tfrecord(tmp_path / f"train.tfrecord-{i:05d}-of-00003", TEXTS[i::3] + [" "], "body")
  layouts.tfrecord(tmp_path / "validation.tfrecord-00000-of-00001", MORE, "body")
  corpus = TFRecordCorpus(
      str(tmp_path / "train.tfrecord-*"), field="body", vocab_file=str(vocab_file),
      validation_files=str(tmp_path / "validation.tfrecord*"))
  check(corpus, TEXTS, MORE)
  with pytest.raises(SettingError, match="TFRecordCorpus.files = .*none.tfrecord"):
    TFRecordCorpus(str(tmp_path / "none.tfrecord"), validation_files="x", vocab_size=9).check_text()


def test_a_vocabulary_is_needed(tmp_path):
  write(tmp_path / "a.txt", TEXTS)
  corpus = TextCorpus(str(tmp_path / "a.txt"))
  with pytest.raises(SettingError, match="TextCorpus.vocab_size = None.*either vocab_file"):
    corpus.check(LENGTHS)
  with pytest.raises(SettingError, match="either vocab_file"):
    corpus.register()
  with pytest.raises(SettingError, match="vocab_size = 300.*vocab_file set"):
    TextCorpus(str(tmp_path / "a.txt"), vocab_size=300).register()
  with pytest.raises(SettingError, match="byte_fallback"):
    TextCorpus("a.txt", vocab_file="a", byte_fallback=True)


def test_a_vocabulary_is_trained_on_the_start_of_a_large_text(tmp_path):
  write(tmp_path / "a.txt", TEXTS)
  corpus = TextCorpus(str(tmp_path / "a.txt"), vocab_size=300)
  few = list(corpus.sample(2000))
  assert 2000 <= sum(len(text.encode()) for text in few) < 2000 + max(map(len, TEXTS)) * 2
  assert sorted(corpus.sample(10**9)) == sorted(texts_of(corpus, "train"))


def test_another_task_of_the_same_name_is_not_replaced_in_silence(tmp_path, vocab_file, caplog):
  for name in ("a.txt", "b.txt"):
    write(tmp_path / name, TEXTS)
  corpus = TextCorpus(str(tmp_path / "a.txt"), vocab_file=str(vocab_file), name="twice")
  corpus.register()
  dataclasses.replace(corpus).register()
  assert not caplog.records
  dataclasses.replace(corpus, files=str(tmp_path / "b.txt")).register()
  assert "The task 'twice' takes the place of another one of this name" in caplog.text


def test_the_objective_reaches_the_task(tmp_path, vocab_file):
  import seqio

  write(tmp_path / "a.txt", TEXTS)
  corpus = TextCorpus(str(tmp_path / "a.txt"), vocab_file=str(vocab_file), objective=IidDenoising())
  task = seqio.get_mixture_or_task(corpus.register())
  assert task.name == "text" and task.preprocessors[0].keywords == {"objective": IidDenoising()}
  with pytest.raises(SettingError, match="targets"):
    TextCorpus(corpus.files, vocab_file=corpus.vocab_file, objective=ul2()).check(LENGTHS)

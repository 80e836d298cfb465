"""Figures of a task's data, counted by hand; the tool; the page."""

import os
import subprocess
import sys

import numpy as np
import pytest

from t5jax.data import inspection
from t5jax.data.iterator import TaskData
from t5jax.data.text_files import DataError
from t5jax.settings import SettingError
from t5jax.tasks.text import TextCorpus
from t5jax.tools import inspect_data

LENGTHS = {"inputs": 64, "targets": 20}


class FakeVocabulary:
  """One id per character; x is unknown; ids from 100 on are sentinels."""

  unk_id, num_pieces = 2, 100

  def encode(self, text):
    return [2 if c == "x" else 5 for c in text]

  def unknown_parts(self, text):
    return [c for c in text if c == "x"]


def test_document_figures():
  statistics = inspection.DocumentStatistics()
  for text in ("ab cd", "x"):
    statistics.add(text, FakeVocabulary())
  lines = dict(statistics.lines())
  assert lines["documents"] == "2" and lines["fertility"] == "2.000 tokens per word"
  assert lines["compression"] == "1.000 tokens per character"
  assert lines["unknown"] == "16.6667% of the tokens" and lines["most frequent unknown"] == "'x' x1"
  assert lines["tokens per document"].startswith("3.0 (5 %: 1, median 3, 95 %: 5, most 5)")


def test_example_figures():
  statistics = inspection.ExampleStatistics({"inputs": 10, "targets": 4})
  # Eight tokens kept, three masked in two spans; then an example that does not fit.
  statistics.add([*[5] * 8, 101, 100, 1], [101, 5, 100, 5, 5, 1], FakeVocabulary())
  statistics.add([5] * 3 + [1], [5, 1], FakeVocabulary())
  lines = dict(statistics.lines())
  assert lines["padding of inputs"] == "30.00%"  # (10 + 4) of 20 are used.
  assert lines["truncated targets"] == "50.00% of the examples, 25.00% of the tokens"
  assert lines["masked"] == f"{4 / 15:.2%} of the tokens" and lines["mean span"] == "2.00 tokens"


@pytest.fixture
def data(corpus_file, vocab_file, tmp_path):
  task = TextCorpus(files=str(corpus_file), vocab_file=str(vocab_file), name="inspected")
  made = TaskData(task, LENGTHS, 4)
  made.prepare(tmp_path / "run")
  return made


def test_a_pretraining_task(data, vocabulary, corpus_file, tmp_path):
  found = inspection.inspect(data, vocabulary, num_documents=10**6, num_examples=10**6)
  texts = list(data.task.source().documents("train"))
  assert found.documents == texts[:3]
  assert found.document_statistics.num_words == sum(len(t.split()) for t in texts)
  assert sum(found.document_statistics.lengths) == sum(len(vocabulary.encode(t)) for t in texts)
  lines = dict(found.lines())
  assert lines["truncated inputs"].startswith("0.00%")
  assert float(lines["masked"].split("%")[0]) == pytest.approx(15, abs=1.5)  # Of short segments.
  assert all("<extra_id_0>" in inputs and "<extra_id_0>" in targets
             for inputs, targets in found.examples)
  inspection.write_html(found, tmp_path / "page.html")
  page = (tmp_path / "page.html").read_text(encoding="utf-8")
  assert "<mark>&lt;extra_id_0&gt;</mark>" in page and "data:image/png;base64,iVBOR" in page
  with pytest.raises(DataError, match="no split 'test'"):
    inspection.inspect(data, vocabulary, split="test")


def test_what_a_task_cuts_off_is_counted(vocabulary, corpus_file, tmp_path):
  import seqio

  from t5jax.data.sources import TextSource
  from t5jax.data.text_files import TextFiles

  if "translate" not in seqio.TaskRegistry.names():
    feature = seqio.Feature(vocabulary.seqio())
    seqio.TaskRegistry.add(
        "translate", source=TextSource(TextFiles((str(corpus_file),))),
        preprocessors=[lambda ds: ds.map(lambda x: {"inputs": x["text"], "targets": x["text"]}),
                       seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
        output_features={"inputs": feature, "targets": feature})
  made = TaskData("translate", LENGTHS, 4)
  made.prepare(tmp_path / "run")
  found = inspection.inspect(made, vocabulary, num_examples=10**6)
  texts = corpus_file.read_text(encoding="utf-8").splitlines()
  lengths = np.array([len(vocabulary.encode(text)) + 1 for text in texts])
  assert (lengths > 64).any()
  assert dict(found.lines())["truncated inputs"] == (
      f"{(lengths > 64).mean():.2%} of the examples, "
      f"{1 - np.minimum(lengths, 64).sum() / lengths.sum():.2%} of the tokens")


def test_the_tool(corpus_file, vocab_file, tmp_path):
  module = tmp_path / "my_tasks.py"
  module.write_text(f"""
from t5jax.tasks.text import TextCorpus
TextCorpus(name="mine", files={str(corpus_file)!r}, vocab_file={str(vocab_file)!r}).register()
""")
  done = subprocess.run(
      [sys.executable, "-m", "t5jax.tools.inspect_data", "--task=mine", "--module=my_tasks",
       "--input_length=64", "--target_length=20", "--output=page.html"], cwd=tmp_path,
      capture_output=True, text=True, timeout=120, env={**os.environ,
                                                        "PYTHONPATH": str(tmp_path)})
  assert done.returncode == 0, done.stderr
  assert "--- document\n" in done.stdout and "fertility" in done.stdout
  assert (tmp_path / "page.html").stat().st_size > 10_000


def test_where_the_page_goes_is_looked_at_first(corpus_file, vocab_file, tmp_path, monkeypatch):
  def fail(*arguments):
    raise AssertionError("looked at data in vain")

  command = ["--gin_file=text.gin", "--gin.MODEL_DIR=run", f"--gin.TRAIN_FILES={corpus_file}",
             f"--gin.VOCAB_FILE={vocab_file}"]
  monkeypatch.setattr(inspect_data, "inspect", fail)
  with pytest.raises(SettingError, match="--output = .*this is a folder"):
    inspect_data.main([*command, f"--output={tmp_path}"])
  with pytest.raises(SettingError, match="--output = .*a folder to write to"):
    inspect_data.main([*command, f"--output={corpus_file}/page.html"])
  with pytest.raises(AssertionError, match="in vain"):
    inspect_data.main([*command, f"--output={tmp_path}/new/page.html"])
  assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("task, problem", [
    ("danish.nothing", "a corpus of t5jax.tasks"), ("text.TextCorpus", "--gin_file .*'files'"),
    ("danish.strip_speakers", "--gin_file")])
def test_what_is_no_task_is_named(task, problem):
  with pytest.raises(SettingError, match=f"--task = '{task}'.*{problem}"):
    inspect_data.main([f"--task={task}"])

"""Training a vocabulary: ids, coverage, sampling, determinism, errors, the command line."""

import pathlib
import random
import re
import resource
import subprocess
import sys
import unicodedata

import pytest

from t5jax.data import normalization
from t5jax.data.vocab_training import DANISH_CHARS, split_sentences, text_rates, train_vocabulary
from t5jax.data.vocabulary import Vocabulary
from t5jax.settings import SettingError
from t5jax.tasks.demo import FILES
from t5jax.tools import train_vocab
from tests.data.conftest import make_documents


def test_same_seed_same_bytes(tmp_path):
  documents = make_documents(300)
  for name, seed in (("a", 0), ("b", 0), ("c", 1)):
    train_vocabulary(documents, tmp_path / name, 300, max_sentences=100, seed=seed)
  read = {name: (tmp_path / name).read_bytes() for name in "abc"}
  assert read["a"] == read["b"] != read["c"]
  assert str(tmp_path).encode() not in read["a"]
  assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_characters_of_danish_and_of_the_text_are_covered(vocabulary):
  assert vocabulary.unknown_rate(" ".join(DANISH_CHARS)) == 0.0
  unknown, same = text_rates(vocabulary, make_documents(50))
  assert unknown == 0.0 and same == 1.0


def test_byte_fallback_knows_every_character(tmp_path):
  train_vocabulary(make_documents(200), tmp_path / "bytes.model", 600, byte_fallback=True)
  vocabulary = Vocabulary(tmp_path / "bytes.model")
  assert vocabulary.decode(vocabulary.encode("日本 🙂")) == "日本 🙂"


def test_report_counts_what_was_used_and_skipped(tmp_path):
  documents = make_documents(100) + ["", " \n "]
  report = train_vocabulary(documents, tmp_path / "m", 200, max_sentences=60)
  assert (report.num_documents, report.num_sentences, report.used_sentences, report.num_empty) == (
      102, 100, 60, 2)
  assert "40 sentences skipped" in str(report) and "2 empty" in str(report)
  report = train_vocabulary(documents, tmp_path / "m", 200, max_bytes=3000)
  assert 2000 < report.used_bytes <= 3000


def test_long_documents_are_split_not_skipped(tmp_path):
  document = " ".join(make_documents(300))
  parts = list(split_sentences(document))
  assert len(parts) > 5 and all(len(part.encode()) <= 4000 for part in parts)
  assert " ".join(parts) == document
  unbroken = "å" * 5000
  assert "".join(split_sentences(unbroken)) == unbroken
  report = train_vocabulary([document], tmp_path / "m", 300)
  assert report.used_bytes >= len(document.encode()) - len(parts)


def test_largest_size_that_works_is_named_and_works(tmp_path):
  documents = make_documents(30)
  with pytest.raises(ValueError, match="at most [0-9]+ pieces") as error:
    train_vocabulary(documents, tmp_path / "m", 50_000)
  largest = int(re.search(r"at most (\d+)", str(error.value))[1])
  train_vocabulary(documents, tmp_path / "m", largest)
  assert Vocabulary(tmp_path / "m").num_pieces == largest
  with pytest.raises(ValueError, match="characters alone need"):
    train_vocabulary(documents, tmp_path / "m", 20)
  with pytest.raises(ValueError, match="0 sentences"):
    train_vocabulary([], tmp_path / "m", 20)


def test_normalisation_is_nmt_nfkc_but_for_fractions_and_soft_hyphens():
  rules = normalization.rules()
  assert len(rules) > 200_000
  assert rules["a\u030a"] == "å" and rules["…"] == "..." and rules["\u00a0"] == " "
  assert rules["\u00ad"] == "" and "½" not in rules


def test_memory_is_bounded_by_the_sample(tmp_path):
  words = [f"ord{i}" for i in range(2000)]

  def texts():
    draw = random.Random(0)
    for _ in range(1500):
      yield " ".join(draw.choices(words, k=3000))

  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  report = train_vocabulary(texts(), tmp_path / "m", 400, max_bytes=500_000)
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  assert report.num_bytes > 30_000_000 and report.used_bytes <= 500_000
  assert after - before < 150_000  # KiB


def test_command_line(tmp_path, corpus_file, capsys):
  output = tmp_path / "spiece.model"
  train_vocab.main([f"--files={corpus_file}", "--vocab_size=250", f"--output={output}"])
  printed = capsys.readouterr().out
  assert "0.000% of the ids unknown, 100.0% of the lines" in printed
  assert "250 pieces, 350 ids with the sentinels, 384 rows" in printed


def test_a_vocabulary_is_replaced_on_request_only(tmp_path, corpus_file):
  """Nor is anything else: the text itself is easily given as --output."""
  output = tmp_path / "new" / "spiece.model"
  command = [f"--files={corpus_file}", f"--output={output}"]
  train_vocab.main([*command, "--vocab_size=250"])
  with pytest.raises(SettingError, match="spiece.model.*--overwrite"):
    train_vocab.main([*command, "--vocab_size=260"])
  assert Vocabulary(output).num_pieces == 250
  train_vocab.main([*command, "--vocab_size=260", "--overwrite"])
  assert Vocabulary(output).num_pieces == 260
  text = corpus_file.read_bytes()
  with pytest.raises(ValueError, match="not a SentencePiece model"):
    train_vocab.main([*command[:1], "--vocab_size=250", f"--output={corpus_file}", "--overwrite"])
  with pytest.raises(SettingError, match="--output = .*a folder to write to"):
    train_vocab.main([*command[:1], "--vocab_size=250", f"--output={corpus_file}/spiece.model"])
  assert corpus_file.read_bytes() == text


def test_the_command_line_reads_text_as_training_does(tmp_path, capsys):
  lines = make_documents(50)
  (tmp_path / "whole.txt").write_text("\n".join(lines), encoding="utf-8")
  (tmp_path / "part.jsonl").write_text('{"text": "en bog"}\n{"text": null}\n', encoding="utf-8")
  train_vocab.main([f"--files={tmp_path}/*", "--vocab_size=250", "--documents=file",
                    "--on_error=skip", f"--output={tmp_path}/spiece.model"])
  printed = capsys.readouterr().out
  assert printed.startswith("2 documents, ") and "1 unusable records skipped" in printed


def test_command_line_fails_with_one_line(tmp_path):
  done = subprocess.run(
      [sys.executable, "-m", "t5jax.tools.train_vocab", f"--files={tmp_path}/none.txt",
       "--vocab_size=250"], capture_output=True, text=True, timeout=60)
  assert done.returncode == 1
  assert re.fullmatch(r"train_vocab: .*none.txt.*\n", done.stderr)


def test_a_danish_vocabulary_suits_danish_better_than_an_english_one(tmp_path):
  """On lines that neither has seen; by a quarter at least, as the two languages share the letters."""
  vocabularies, held_out = {}, []
  for path in FILES:
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    train_vocabulary(lines[len(lines) // 10:], tmp_path / "spiece.model", 1000)
    name = pathlib.Path(path).stem
    vocabularies[name] = Vocabulary(tmp_path / "spiece.model")
    held_out += lines[:len(lines) // 10] if name == "danish" else []
  tokens = {name: sum(len(vocabulary.encode(line)) for line in held_out)
            for name, vocabulary in vocabularies.items()}
  assert tokens["danish"] < 0.75 * tokens["english"]
  difficult = "Æblegrød på Ærø, Århus og Øresund »ja« – § 2½ „og“ ’nej’"
  danish = vocabularies["danish"]
  assert danish.unknown_rate(difficult) == 0 and danish.decode(danish.encode(difficult)) == difficult
  assert danish.encode(unicodedata.normalize("NFD", difficult)) == danish.encode(difficult)

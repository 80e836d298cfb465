"""A corpus from files to shards: what stays, any number of processes, killed and started again."""

import json
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from t5jax.cleaning import stages
from t5jax.cleaning.cleaner import CleaningSettings
from t5jax.cleaning.corpora import Corpus
from t5jax.cleaning.prepare import PrepareSettings, prepare
from t5jax.data.text_files import DataError, TextFiles, find_files
from t5jax.tasks.demo import FILES
from tests.cleaning.test_duplicates import change
from tests.cleaning.test_rules import ENGLISH, SWEDISH
from tests.data.conftest import make_documents


def danish_documents(count, lines=8, seed=0):
  """Documents of sentences of the demo's Danish, all different."""
  sentences = pathlib.Path(FILES[0]).read_text(encoding="utf-8").splitlines()
  rng = random.Random(seed)
  return ["\n".join(rng.sample(sentences, lines)) for _ in range(count)]


@pytest.fixture
def gigaword(tmp_path):
  """A tree as Danish Gigaword's, with planted duplicates and documents of other languages."""
  root = tmp_path / "dagw" / "sektioner"
  rng = random.Random(5)
  files = {f"ft/ft_{i:03d}": f"TALER {i}: {text}" for i, text in enumerate(danish_documents(30))}
  files["botxt/botxt_0000001"] = ("Då Pâul va sæks År, kjevte Moern hannem en Ābc. Nu skujle hanj "
                                  "begjynja å læsa. De viste sâ snârt, at hanj va flittiger.")
  files["wiki/wiki_soft"] = danish_documents(1, seed=9)[0].replace("en", "e\u00adn", 3)
  files["wiki/wiki_nfd"] = "Blåbær på Ærø er gode, og når året går på hæld, er der ål i åen."
  files["wiki/wiki_blank"] = " \n\u00ad\n"
  files["ft/ft_100"] = "  " + files["ft/ft_003"].replace("\n", " \r\n")
  for i in range(10):
    files[f"ft/ft_2{i:02d}"] = change(files[f"ft/ft_{i:03d}"], 0.05, rng)
  files["wiki/wiki_en"], files["wiki/wiki_sv"] = ENGLISH, SWEDISH
  for name, text in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(text.encode())
  (root / "ft" / "LICENSE").write_text("CC0")
  return root


def corpus(root, **options):
  from t5jax.data import dagw

  return Corpus(TextFiles(dagw.find_documents(root), documents="file", **options))


def rows(folder, pattern):
  files = TextFiles(find_files(str(folder / pattern)), transform=None)
  import io

  import pyarrow

  return [json.loads(line) for path in files.paths
          for line in io.BufferedReader(pyarrow.input_stream(path, compression="zstd"))]


def contents(folder):
  """Every file of a result but for the lock, by name."""
  return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*"))
          if p.is_file() and p.name != ".lock"}


SETTINGS = PrepareSettings(CleaningSettings(language="da"), validation_fraction=0.2)


def test_danish_gigaword(gigaword, tmp_path):
  out = tmp_path / "out"
  report = prepare(corpus(gigaword), SETTINGS, out)
  kept = {row["id"]: row for row in rows(out, "train-*") + rows(out, "validation-*")}
  assert {f"ft_{i:03d}" for i in range(30)} < set(kept) and "botxt_0000001" in kept
  assert not any(f"ft_{i}" in kept for i in (100, *range(200, 210)))
  assert kept["botxt_0000001"]["source"] == "botxt"
  assert "\u00ad" not in kept["wiki_soft"]["text"] and "å" in kept["wiki_nfd"]["text"]
  assert [(r["id"], r["reason"]) for r in rows(out, "rejected/language*")] == [
      ("wiki_en", "en"), ("wiki_sv", "sv")]
  assert [r["reason"] for r in rows(out, "rejected/exact_duplicates*")] == ["duplicate of ft_003"]
  assert {r["id"]: r["reason"] for r in rows(out, "rejected/near_duplicates*")} == {
      f"ft_2{i:02d}": f"duplicate of ft_{i:03d}" for i in range(10)}
  assert report.counts["read"] == report.counts["kept"] + 14 and not (out / "work").exists()
  page = (out / "report.md").read_text(encoding="utf-8")
  assert "| language | 2 | 0 | en: 1, sv: 1 |" in page and "| botxt | 1 | 1 |" in page


def test_the_result_is_text_to_train_on(gigaword, tmp_path):
  prepare(corpus(gigaword), SETTINGS, tmp_path / "out")
  files = TextFiles(find_files(str(tmp_path / "out" / "*.jsonl.zst")))
  files.check()
  assert sum(1 for _ in files.iterate()) == 33


def test_near_duplicates_lie_on_one_side(tmp_path):
  """With duplicates kept, each copy is where its original is."""
  rng = random.Random(6)
  texts = danish_documents(60)
  texts += [change(text, 0.05, rng) for text in texts]
  (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
  settings = PrepareSettings(drop_duplicates=False, validation_fraction=0.3)
  prepare(Corpus(TextFiles((str(tmp_path / "a.jsonl"),))), settings, tmp_path / "out")
  held_out = {row["text"] for row in rows(tmp_path / "out", "validation-*")}
  assert 10 < len(held_out) < 60
  assert [text in held_out for text in texts[:60]] == [text in held_out for text in texts[60:]]


def test_order_by_how_likely_the_words_are(tmp_path):
  common, rare = "og det er en som ikke", "xylofon qvæstor ørkesløs"
  texts = [f"{rare} {i}" for i in range(5)] + [f"{common} " * (2 + i) for i in range(5)]
  (tmp_path / "a.txt").write_text("\n".join(texts), encoding="utf-8")
  for order, first in (("likely_first", common), ("unlikely_first", "xylofon")):
    settings = PrepareSettings(validation_fraction=0.0, order=order)
    prepare(Corpus(TextFiles((str(tmp_path / "a.txt"),))), settings, tmp_path / order)
    written = [row["text"] for row in rows(tmp_path / order, "train-*")]
    assert len(written) == 10 and all(text.startswith(first) for text in written[:5])


def test_shards_have_the_size_asked_for(tmp_path):
  (tmp_path / "a.txt").write_text("\n".join(make_documents(400)), encoding="utf-8")
  settings = PrepareSettings(validation_fraction=0.0, shard_bytes=10_000)
  prepare(Corpus(TextFiles((str(tmp_path / "a.txt"),))), settings, tmp_path / "out")
  names = sorted(p.name for p in (tmp_path / "out").glob("*.zst"))
  assert len(names) > 4 and names[-1] == f"train-{len(names) - 1:05d}-of-{len(names):05d}.jsonl.zst"
  assert [row["text"] for row in rows(tmp_path / "out", "train-*")] == make_documents(400)


RUN = """
import sys
from t5jax.cleaning import prepare, stages
from t5jax.cleaning.cleaner import CleaningSettings
from t5jax.cleaning.corpora import Corpus
from t5jax.data.text_files import TextFiles
if __name__ == "__main__":
  stages._JOURNAL_SECONDS = 0.0
  stages._MAX_BATCH_BYTES = 2000
  settings = prepare.PrepareSettings(CleaningSettings(language="da"), validation_fraction=0.1)
  prepare.prepare(Corpus(TextFiles(tuple(sys.argv[3:]))), settings, sys.argv[1], int(sys.argv[2]))
"""


def test_any_number_of_processes_and_a_kill_give_the_same(tmp_path):
  rng = random.Random(7)
  texts = danish_documents(500, lines=4)
  texts += [change(text, 0.05, rng) for text in texts[:40]] + [ENGLISH, SWEDISH, texts[3]]
  (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts[:300]))
  (tmp_path / "b.txt").write_text("\n".join(t.replace("\n", " ") for t in texts[300:]))
  (tmp_path / "run.py").write_text(RUN)

  def start(name, num_processes):
    return subprocess.Popen(
        [sys.executable, tmp_path / "run.py", tmp_path / name, str(num_processes),
         tmp_path / "a.jsonl", tmp_path / "b.txt"], stderr=subprocess.DEVNULL)

  assert start("one", 1).wait(120) == 0 and start("two", 2).wait(120) == 0
  killed, journal = start("killed", 2), tmp_path / "killed" / "work" / "journal.json"
  deadline = time.monotonic() + 100
  while time.monotonic() < deadline and not (
      journal.exists() and json.loads(journal.read_text())["state"]["bytes"] > 30_000):
    time.sleep(0.002)
  killed.send_signal(signal.SIGKILL)
  killed.wait()
  assert not (tmp_path / "killed" / "report.json").exists()
  begun = json.loads(journal.read_text())["state"]
  assert begun["bytes"] > 30_000 and not begun["done"]
  assert start("killed", 1).wait(120) == 0
  expected = contents(tmp_path / "one")
  assert contents(tmp_path / "two") == expected
  assert contents(tmp_path / "killed") == expected
  report = json.loads(expected["report.json"])
  assert report["dropped"]["language"] == 2 and report["dropped"]["near_duplicates"] >= 38


def test_finished_and_other_work_is_not_touched(tmp_path):
  (tmp_path / "a.txt").write_text("\n".join(make_documents(20)), encoding="utf-8")
  source = Corpus(TextFiles((str(tmp_path / "a.txt"),)))
  report = prepare(source, PrepareSettings(), tmp_path / "out")
  before = contents(tmp_path / "out")
  assert vars(prepare(source, PrepareSettings(), tmp_path / "out")) == vars(report)
  with pytest.raises(DataError, match="other settings or files: settings.cleaning.language, "
                                      "settings.order. Choose another folder"):
    prepare(source, PrepareSettings(CleaningSettings("da"), order="likely_first"),
            tmp_path / "out")
  assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("num_fine", [0, 3000])
def test_a_refused_record_can_be_skipped_afterwards(tmp_path, monkeypatch, num_fine):
  """Be it the first, before anything is written, or one after hours: what was done is kept."""
  monkeypatch.setattr(stages, "_JOURNAL_SECONDS", 0.0)
  rows = [json.dumps({"text": text}) for text in make_documents(num_fine + 100)]
  (tmp_path / "a.jsonl").write_text("\n".join([*rows[:num_fine], "{broken", *rows[num_fine:]]))
  run = lambda folder, settings=PrepareSettings(), **reading: prepare(
      Corpus(TextFiles((str(tmp_path / "a.jsonl"),), **reading)), settings, tmp_path / folder)
  with pytest.raises(DataError, match=f"line {num_fine + 1}: not JSON"):
    run("out")
  if num_fine:
    with pytest.raises(DataError, match="other settings or files: settings.drop_duplicates"):
      run("out", PrepareSettings(drop_duplicates=False))
  report = run("out", on_error="skip")
  assert report.counts["skipped records"] == 1 and report.counts["read"] == num_fine + 100
  run("afresh", on_error="skip")
  assert contents(tmp_path / "out") == contents(tmp_path / "afresh")
  with pytest.raises(DataError, match="other settings or files: reading.on_error"):
    run("out")


def test_nothing_left_is_said(tmp_path):
  (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf-8")
  with pytest.raises(DataError, match="no document is left of 1"):
    prepare(Corpus(TextFiles((str(tmp_path / "a.txt"),))), SETTINGS, tmp_path / "out")


def tool(*arguments, cwd):
  return subprocess.run([sys.executable, "-m", "t5jax.tools.prepare_text", *arguments], cwd=cwd,
                        capture_output=True, text=True, timeout=120)


def test_the_tool(gigaword, tmp_path):
  done = tool(f"--dagw={gigaword}", "--language=da", "--output_dir=out", "--strip_speakers",
              "--workers=1", cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert "dropped by length 1, language 2, exact_duplicates 1, near_duplicates 10;" in done.stdout
  assert not any(row["text"].startswith("TALER") for row in rows(tmp_path / "out", "train-*"))


@pytest.mark.parametrize("fraction, warned", [("0.000001", True), ("0", False)])
def test_too_few_documents_to_hold_one_out_is_said(tmp_path, capsys, fraction, warned):
  from t5jax.tools import prepare_text

  (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf-8")
  prepare_text.main([f"--files={tmp_path}/a.txt", f"--output_dir={tmp_path}/out", "--workers=1",
                     f"--validation_fraction={fraction}"])
  printed = capsys.readouterr()
  assert "0 to validate on" in printed.out
  assert ("none is held out: raise --validation_fraction" in printed.err) == warned


@pytest.mark.parametrize("arguments, problem", [
    (["--language=da"], "--files = None.*either --files or --dagw"),
    (["--files=none*.txt"], "--files = 'none"), (["--dagw=."], "directory = '.'"),
    (["--files=a.txt", "--word_list=en"], "word_list = 'en'"),
    (["--files=a.txt", "--workers=0"], "workers = 0"),
    (["--files=a.txt", "--output_dir=a.txt"], "output_dir = 'a.txt'.*folder"),
    (["--files=a.txt", "--validation_fraction=1"], "validation_fraction = 1.0")])
def test_wrong_arguments_are_one_line(tmp_path, monkeypatch, arguments, problem):
  from t5jax.tools import prepare_text

  (tmp_path / "a.txt").write_text("text")
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=problem):
    prepare_text.main(["--output_dir=out", *arguments])
  assert not (tmp_path / "out").exists()

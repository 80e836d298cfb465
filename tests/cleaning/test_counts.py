"""What the report counts, what documents are called, and processes and folders left behind."""

import json
import os
import signal

import pytest

from t5jax.cleaning import stages
from t5jax.cleaning.cleaner import Cleaner, CleaningSettings, Document
from t5jax.cleaning.corpora import Corpus
from t5jax.cleaning.prepare import PrepareSettings, prepare
from t5jax.data.text_files import DataError, TextFiles
from tests.cleaning.test_rules import SWEDISH
from tests.data.conftest import make_documents

SETTINGS = PrepareSettings(validation_fraction=0.0)


def corpus(*paths, **options):
  return Corpus(TextFiles(tuple(map(str, paths)), **options))


def test_what_the_reader_met_is_counted(tmp_path):
  (tmp_path / "a.jsonl").write_bytes(
      b'{"text": "et \xef\xbf\xbd"}\n{"text": " "}\n\n{"text": null}\n{"text": "to \xff"}\n')
  files = corpus(tmp_path / "a.jsonl", errors="replace", on_error="skip")
  counts = prepare(files, SETTINGS, tmp_path / "out").counts
  assert counts["read"] == counts["kept"] == 2
  assert counts["blank documents"] == 2 and counts["skipped records"] == 1
  assert counts["replaced sequences"] == 1 and counts["U+FFFD"] == 2
  page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
  assert "2 blank documents." in page and "1 skipped records." in page and "2 U+FFFD." in page


def test_characters_that_rules_took_are_counted(tmp_path):
  line = "Her er en linje med mange ord i."
  (tmp_path / "a.txt").write_text(f"{line}\nMenu\n{line}\n\n", encoding="utf-8")
  settings = PrepareSettings(CleaningSettings(web=True), validation_fraction=0.0)
  with pytest.raises(DataError, match="no document is left"):
    prepare(corpus(tmp_path / "a.txt", documents="file"), settings, tmp_path / "none")
  text = "\n".join([*make_documents(5, words=(8, 9)), "Menu"]).replace("\n", ".\n")
  (tmp_path / "b.txt").write_text(text, encoding="utf-8")
  report = prepare(corpus(tmp_path / "b.txt", documents="file"), settings, tmp_path / "out")
  assert report.counts["characters read"] == len(text)
  assert report.counts["characters kept"] == len(text) - len("\nMenu")
  assert report.sources[tmp_path.name] == [1, 1, len(text), len(text) - len("\nMenu")]


def test_white_space_at_the_ends_is_no_repair():
  changed_by = [Cleaner(CleaningSettings())(Document(text, "", "")).changed_by
                for text in ("tekst\n", "te\u00adkst\n")]
  assert changed_by == [(), ("repair",)]


@pytest.mark.parametrize("names, expected", [
    (("a/x.txt", "b/y.txt"), ["x.txt:0:0", "y.txt:0:0"]),
    (("a/x.txt", "b/x.txt"), ["a/x.txt:0:0", "b/x.txt:0:0"])])
def test_every_document_has_its_own_id(tmp_path, names, expected):
  for name in names:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"tekst i {name}\n")
  [batch] = corpus(*(tmp_path / name for name in names)).batches()
  assert [document[2] for document in batch.documents] == expected


def test_danish_is_told_from_norwegian():
  """Bokmål has a good part of the probability of Danish; what is likelier decides."""
  settings = CleaningSettings(language="da")
  bokmal = ("Jeg vet ikke hva jeg skal gjøre i helgen, men kanskje reiser vi til hytta på fjellet. "
            "Barna har lyst til å gå på ski, og været blir visst bra. Etterpå skal vi spise middag "
            "hos besteforeldrene i Bergen.")
  danish = ("Jeg ved ikke, hvad jeg skal lave i weekenden, men måske rejser vi op i sommerhuset. "
            "Børnene har lyst til at gå i vandet, og vejret bliver vist godt. Bagefter skal vi "
            "spise middag hos bedsteforældrene i Aalborg.")
  reasons = [Cleaner(settings)(Document(text, "", "")).reason for text in (bokmal, danish)]
  assert reasons == ["no", ""]


def test_the_tool_takes_trusted_sources(tmp_path):
  from t5jax.tools import prepare_text

  (tmp_path / "a.txt").write_text(SWEDISH, encoding="utf-8")
  arguments = [f"--files={tmp_path / 'a.txt'}", "--language=da", "--workers=1"]
  prepare_text.main([*arguments, f"--output_dir={tmp_path / 'out'}", "--trusted_sources", "a.txt"])
  assert list((tmp_path / "out").glob("*.zst"))
  with pytest.raises(DataError, match="no document is left"):
    prepare_text.main([*arguments, f"--output_dir={tmp_path / 'none'}", "--trusted_sources"])


def test_a_leftover_folder_is_taken_away(tmp_path):
  (tmp_path / "a.txt").write_text("\n".join(make_documents(5)), encoding="utf-8")
  report = prepare(corpus(tmp_path / "a.txt"), SETTINGS, tmp_path / "out")
  (tmp_path / "out" / "work").mkdir()  # As a kill right at the end leaves it.
  assert vars(prepare(corpus(tmp_path / "a.txt"), SETTINGS, tmp_path / "out")) == vars(report)
  assert not (tmp_path / "out" / "work").exists()


def test_a_process_that_dies_is_one_line(tmp_path, monkeypatch):
  """The kernel ends processes for want of memory; the parent says so and does not hang."""
  (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in make_documents(50)))
  monkeypatch.setattr(stages, "_clean_batch", _die)
  with pytest.raises(DataError, match="was ended from outside.*goes on from here"):
    prepare(corpus(tmp_path / "a.jsonl"), SETTINGS, tmp_path / "out", num_processes=2)


def _die(documents):
  os.kill(os.getpid(), signal.SIGKILL)

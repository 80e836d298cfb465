"""Reading text files: records, encodings, errors, hold-out, sharding and order."""

import gzip
import json

import pytest

from t5jax.data import holdout
from t5jax.data.streams import BLOCK_BYTES
from t5jax.data.text_files import DataError, TextFiles, find_files
from t5jax.settings import SettingError
from t5jax.tasks.text import TextCorpus
from tests.data.conftest import make_documents


def read(path, **options):
  return list(TextFiles((str(path),), **options).iterate())


def write_jsonl(path, rows):
  path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
                  encoding="utf-8")
  return path


def test_lines_end_at_line_feeds_only(tmp_path):
  path = tmp_path / "a.txt"
  odd = "en\u2028to\u2029tre\u0085fire\vfem\fseks\rsyv"
  path.write_bytes(f"\ufeff{odd}\r\nlast".encode())
  assert read(path) == [odd, "last"]


def test_all_formats_hold_the_same(tmp_path):
  documents = make_documents(4000)
  text = ("\n".join(documents) + "\n").encode()
  assert len(text) > 3 * BLOCK_BYTES
  (tmp_path / "a.txt").write_bytes(text)
  (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text))
  (tmp_path / "crlf.txt").write_bytes(text.replace(b"\n", b"\r\n"))
  (tmp_path / "blank.txt").write_bytes(text.replace(b"\n", b"\n \t\n\n"))
  write_jsonl(tmp_path / "a.jsonl", [{"text": d} for d in documents])
  (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
  for path in sorted(tmp_path.iterdir()):
    assert read(path, documents="blank_line" if path.name == "blank.txt" else "line") == documents


def test_paragraphs_keep_their_inner_line_feeds(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"\n\none\r\ntwo\r\n\r\n \nthree\n")
  assert read(path, documents="blank_line") == ["one\ntwo", "three"]


def test_paragraphs_longer_than_a_block(tmp_path):
  paragraphs = ["\n".join(make_documents(500, seed=i)) for i in range(6)]
  path = tmp_path / "a.txt"
  path.write_text("\n\n".join(paragraphs), encoding="utf-8")
  assert read(path, documents="blank_line") == paragraphs


def test_only_the_text_field_of_a_row_matters(tmp_path):
  metas = [1, "a", None, [1, "x"], {}]
  rows = [{"text": f"document {i}", "meta": metas[i % 5]} for i in range(199)]
  rows.append({"text": '{"text": {"dtype": "string", "_type": "Value"}}', "meta": True})
  path = write_jsonl(tmp_path / "a.jsonl", rows)
  assert read(path) == [row["text"] for row in rows]
  renamed = write_jsonl(tmp_path / "b.jsonl", [{"content": row["text"]} for row in rows])
  assert read(renamed, field="content") == [row["text"] for row in rows]


@pytest.mark.parametrize("line, problem", [
    ("{broken", "not JSON"), ('["list"]', "not a JSON object"), ('{"txt": "a"}', "'text'; .*'txt'"),
    ('{"text": null}', "is null, not a string"), ('{"text": 3}', "is 3, not a string"),
    ('{"text": "a\\ud800"}', "surrogate")])
def test_wrong_rows_are_named(tmp_path, line, problem):
  path = tmp_path / "a.jsonl"
  path.write_text('{"text": "fine"}\n\n' + line + "\n", encoding="utf-8")
  with pytest.raises(DataError, match=f"a.jsonl, line 3: .*{problem}"):
    read(path)


def test_wrong_row_deep_in_a_compressed_file_is_named(tmp_path):
  lines = [json.dumps({"text": document}) for document in make_documents(2000)]
  lines[1800] = '{"text": 7}'
  path = tmp_path / "a.jsonl.gz"
  path.write_bytes(gzip.compress("\n".join(lines).encode()))
  with pytest.raises(DataError, match="a.jsonl.gz, line 1801: "):
    read(path)


def test_wrong_encoding_is_named_and_can_be_chosen(tmp_path):
  latin = tmp_path / "latin.txt"
  latin.write_bytes("fin linje\nrødgrød med fløde\n".encode("latin-1"))
  with pytest.raises(DataError, match=r"latin.txt, line 2, byte 2 of the line \(byte 11 of the file"
                                      r"\): 0xf8 is not utf-8"):
    read(latin)
  assert read(latin, encoding="latin-1")[1] == "rødgrød med fløde"
  stray = tmp_path / "stray.txt"
  stray.write_bytes("sær \ufffd ".encode() + b"a\xffb\n")
  files = TextFiles((str(stray),), errors="replace")
  assert list(files.iterate()) == ["sær \ufffd a\ufffdb"]
  assert list(files.iterate()) and files.counts()["replaced"] == 1


@pytest.mark.parametrize("encoding", ["utf-16", "no-such"])
def test_encodings_that_cannot_be_split_at_line_feeds(encoding):
  with pytest.raises(SettingError, match="encoding"):
    TextFiles(("a.txt",), encoding=encoding)


def test_blank_documents_are_dropped_and_counted(tmp_path):
  path = write_jsonl(tmp_path / "a.jsonl", [{"text": t} for t in ("a", " \n\t", "", "b", "\u3000")])
  files = TextFiles((str(path),))
  assert list(files.iterate()) == ["a", "b"]
  assert files.counts()["blank"] == 3 and files.counts()["documents"] == 2


@pytest.mark.parametrize("name, content, problem", [
    ("empty.txt", b"", ": is empty"), ("blank.txt", b" \n\n\t\n", ": holds no document"),
    ("plain.txt.gz", b"text\n", ": is not gzip data"),
    ("packed.txt", gzip.compress(b"text\n", mtime=0), ": holds gzip data; rename it"),
    ("cut.txt.gz", gzip.compress(b"text\n" * 99, mtime=0)[:-12], ", line 2: cannot be read")],
    ids=lambda value: value if isinstance(value, str) and "." in value else "")
def test_unusable_files_are_named(tmp_path, name, content, problem):
  path = tmp_path / name
  path.write_bytes(content)
  with pytest.raises(DataError, match=f"{name}{problem}"):
    TextFiles((str(path),)).check()


def test_patterns(tmp_path, monkeypatch):
  for name in ("b.txt", "a.txt", "notes.md", "[odd].txt"):
    (tmp_path / name).write_text("x", encoding="utf-8")
  monkeypatch.setenv("HOME", str(tmp_path))
  names = [str(tmp_path / n) for n in ("[odd].txt", "a.txt", "b.txt")]
  assert find_files("~/*.txt") == tuple(names)
  assert find_files([names[1], str(tmp_path / "*.txt")]) == tuple(names)
  assert find_files(names[0]) == (names[0],)
  with pytest.raises(SettingError, match=f"files = .*{tmp_path} has none.*did you mean.*b.txt"):
    find_files(str(tmp_path / "bb.txt"))
  with pytest.raises(SettingError, match=r"this is a folder: use .*\*.txt"):
    find_files(str(tmp_path))
  assert find_files(str(tmp_path / "notes.md")) == (str(tmp_path / "notes.md"),)


def test_hold_out_is_stable_and_keeps_duplicates_together(tmp_path, vocab_file):
  documents = make_documents(600)
  (tmp_path / "a.txt").write_text("\n".join(documents + documents[:300]), encoding="utf-8")
  (tmp_path / "b.txt").write_text("\n".join(reversed(documents)), encoding="utf-8")
  splits = {}
  for name in ("a", "b"):
    source = TextCorpus(files=str(tmp_path / f"{name}.txt"), vocab_file=str(vocab_file),
                        validation_fraction=0.1).source()
    splits[name] = {s: list(source.documents(s)) for s in ("train", "validation")}
  assert set(splits["a"]["validation"]) == set(splits["b"]["validation"])
  assert not set(splits["a"]["train"]) & set(splits["a"]["validation"])
  assert sum(map(len, splits["a"].values())) == 900
  assert 30 < len(splits["b"]["validation"]) < 90


def test_hold_out_leaves_no_side_empty():
  for count in (2, 3, 10):
    for fraction in (0.0001, 0.02, 0.9999):
      documents = make_documents(count)
      limit = holdout.threshold(documents, fraction)
      held_out = sum(holdout.text_hash(d) < limit for d in documents)
      assert 0 < held_out < count
  with pytest.raises(DataError, match="fewer than two different documents"):
    holdout.threshold(["same", "same"], 0.1)


def test_hold_out_reads_little_of_a_large_corpus():
  read_so_far = iter(make_documents(5000))
  assert holdout.threshold(read_so_far, 0.02) == int(0.02 * 2**64)
  assert len(list(read_so_far)) > 4000


@pytest.fixture(scope="module")
def six_files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("six")
  for i in range(6):
    (folder / f"{i}.txt").write_text("\n".join(make_documents(100, seed=i)), encoding="utf-8")
  return TextFiles(find_files(str(folder / "*.txt")))


def texts_of(dataset):
  return [x["text"].decode() for x in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("num_hosts", [1, 2, 4, 7])
def test_hosts_share_all_documents(six_files, num_hosts):
  import seqio

  from t5jax.data.sources import TextSource

  source = TextSource(six_files)
  found = []
  for host in range(num_hosts):
    dataset = source.get_dataset("train", shuffle=True, seed=1,
                                 shard_info=seqio.ShardInfo(host, num_hosts))
    rows = list(dataset.as_numpy_iterator())
    assert [row["index"] for row in rows] == list(range(len(rows)))
    found += [row["text"].decode() for row in rows]
  assert sorted(found) == sorted(six_files.iterate())


def test_order_of_files_follows_the_seed_and_changes_from_pass_to_pass(six_files):
  from t5jax.data.sources import TextSource

  def passes(seed):
    texts = texts_of(TextSource(six_files).get_dataset("train", seed=seed).repeat(2))
    return texts[:600], texts[600:]

  first, second = passes(1)
  assert first != second and sorted(first) == sorted(second)
  assert passes(1) == (first, second)
  assert passes(2)[0] != first


def test_letters_survive_and_split_names_are_checked(tmp_path):
  from t5jax.data.sources import TextSource

  path = tmp_path / "a.txt"
  path.write_text("æøå ÆØÅ é ü\n", encoding="utf-8")
  source = TextSource(TextFiles((str(path),)))
  assert texts_of(source.get_dataset("train")) == ["æøå ÆØÅ é ü"]
  with pytest.raises(DataError, match="no split 'test'"):
    source.get_dataset("test")


@pytest.mark.parametrize("settings, problem", [
    ({"vocab_size": 10, "vocab_file": "x"}, "vocab_size = 10"),
    ({"vocab_size": 10, "validation_fraction": 1.0}, "validation_fraction = 1.0.*< 1"),
    ({"vocab_size": 10, "documents": "page"}, "documents = 'page'.*'line', 'blank_line'"),
    ({"vocab_size": 10, "validation_files": "b.txt", "validation_fraction": 0.1}, "None where")])
def test_settings_of_a_corpus(settings, problem):
  with pytest.raises(SettingError, match=problem):
    TextCorpus(files="a.txt", **settings)


def test_files_to_validate_on_are_not_trained_on(corpus_file):
  corpus = TextCorpus(files=str(corpus_file), validation_files=str(corpus_file), vocab_size=10)
  with pytest.raises(SettingError, match="not trained on"):
    corpus.check({"inputs": 64, "targets": 32})

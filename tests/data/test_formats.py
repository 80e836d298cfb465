"""Formats and compressions, by name and by content; what cannot be used is located, or skipped."""

import csv
import gzip
import json
import pickle
import tracemalloc
import zlib

import pyarrow
import pyarrow.parquet
import pytest

from t5jax.data import dagw
from t5jax.data.streams import BLOCK_BYTES
from t5jax.data.text_files import DataError, TextFiles, kind_of
from t5jax.settings import SettingError
from tests.data.conftest import make_documents


def zstd(data):
  return pyarrow.compress(data, codec="zstd", asbytes=True)


COMPRESS = {"": lambda data: data, ".gz": lambda data: gzip.compress(data, 1), ".zst": zstd}


def read(*paths, **options):
  return list(TextFiles(tuple(map(str, paths)), **options).iterate())


def skipping(*paths, **options):
  """(texts, number skipped)."""
  files = TextFiles(tuple(map(str, paths)), on_error="skip", **options)
  return list(files.iterate()), files.counts()["skipped"]


def write_csv(path, rows, header=("id", "text", "more"), **dialect):
  with open(path, "w", newline="", encoding="utf-8") as stream:
    writer = csv.writer(stream, **dialect)
    writer.writerow(header)
    writer.writerows(rows)
  return path


def write_parquet(path, texts, **options):
  table = pyarrow.table({"id": list(range(len(texts))), "text": texts, "n": [1.5] * len(texts)})
  pyarrow.parquet.write_table(table, path, **options)
  return path


def flat(document):
  return " ".join(document.split())


def write_all(folder, documents):
  """The same documents in each format, in a.txt on a line each."""
  (folder / "a.txt").write_text("\n".join(map(flat, documents)) + "\n", encoding="utf-8")
  (folder / "a.jsonl").write_text("\n".join(json.dumps({"text": d}) for d in documents),
                                  encoding="utf-8")
  write_csv(folder / "a.csv", [(i, d, 'a "b"\n') for i, d in enumerate(documents)])
  write_csv(folder / "a.tsv", [(i, d, "a\t,") for i, d in enumerate(documents)], delimiter="\t")
  write_parquet(folder / "a.parquet", documents, row_group_size=1000)
  return [folder / f"a.{suffix}" for suffix in ("txt", "jsonl", "csv", "tsv", "parquet")]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_every_format_and_compression_holds_the_same(tmp_path, suffix):
  documents = [d + '\n\n"quoted", second\r\n' * (i % 3) for i, d in
               enumerate(make_documents(4000))]
  for path in write_all(tmp_path, documents):
    data = path.read_bytes()
    assert len(data) > 2 * BLOCK_BYTES or path.suffix == ".parquet"
    packed = tmp_path / f"{path.name}{suffix}"
    packed.write_bytes(COMPRESS[suffix](data))
    expected = list(map(flat, documents)) if path.suffix == ".txt" else documents
    assert read(packed) == expected, packed.name


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", ["noname", "odd.data", "v1.2"])
def test_files_whose_name_says_nothing_are_known_by_content(tmp_path, suffix, name):
  documents = make_documents(50)
  kinds = {}
  for path in write_all(tmp_path, documents):
    if path.suffix not in (".csv", ".tsv"):
      other = tmp_path / f"{path.suffix[1:]}-{name}"
      other.write_bytes(COMPRESS[suffix](path.read_bytes()))
      kinds[path.suffix] = kind_of(other)
      assert read(other) == documents
  assert kinds == {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}


@pytest.mark.parametrize("written, encoding", [
    ("utf-8", "utf-8"), ("utf-8-sig", "utf-8"), ("latin-1", "latin-1")])
def test_long_json_rows_are_known_by_content(tmp_path, written, encoding):
  documents = ["rødgrød " * 9000, "kort"]
  path = tmp_path / "noname"
  path.write_text("\n".join(json.dumps({"text": d}, ensure_ascii=False) for d in documents),
                  encoding=written)
  assert read(path, encoding=encoding) == documents


def test_blocks_can_be_read_from_any_offset_again(tmp_path):
  for path in write_all(tmp_path, make_documents(4000)):
    for suffix in COMPRESS:
      packed = tmp_path / f"{path.name}{suffix}"
      packed.write_bytes(COMPRESS[suffix](path.read_bytes()))
      files = TextFiles((str(packed),))
      offsets, offset = [], -1
      while not offsets or offset > offsets[-1]:
        offsets.append(max(offset, 0))
        offset = files.read(0, offsets[-1]).next_offset
      assert len(offsets) > 3
      forwards = [files.read(0, o) for o in offsets]
      backwards = [pickle.loads(pickle.dumps(files)).read(0, o) for o in reversed(offsets)]
      assert forwards == backwards[::-1]


def test_several_members_and_frames(tmp_path):
  (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
  (tmp_path / "b.txt.zst").write_bytes(zstd(b"three\n") + zstd(b"four\n"))
  assert read(tmp_path / "a.txt.gz", tmp_path / "b.txt.zst") == ["one", "two", "three", "four"]


def test_a_file_a_document(tmp_path):
  for i in range(3):
    (tmp_path / f"doc_{i}").write_bytes(f"line {i}\r\n\r\nmore\n".encode())
  (tmp_path / "empty_looking").write_bytes(b" \n \n")
  paths = sorted(tmp_path.iterdir())
  files = TextFiles(tuple(map(str, paths)), documents="file")
  assert list(files.iterate()) == [f"line {i}\n\nmore\n" for i in range(3)]
  assert files.counts()["blank"] == 1


def test_a_transform_may_empty_a_document(tmp_path):
  (tmp_path / "a.txt").write_text("TALER 1: ja\nTaler 22:\nnej", encoding="utf-8")
  files = TextFiles((str(tmp_path / "a.txt"),), transform=dagw.strip_speakers)
  assert list(files.iterate()) == ["ja", "nej"] and files.counts()["blank"] == 1


@pytest.mark.parametrize("name, content, problem", [
    ("page.txt.gz", b"<!DOCTYPE html><html>", "is not gzip data in spite of its name.*<!DO"),
    ("page.jsonl.zst", b"<!DOCTYPE html><html>", "is not zstd data"),
    ("packed.jsonl", zstd(b"{}\n"), "holds zstd data; rename it to .*packed.jsonl.zst"),
    ("cut.txt.zst", zstd(b"text\n" * 5000)[:-9], "cannot be read: .*[Tt]runcated"),
    ("cut.txt.gz", gzip.compress(b"text\n" * 5000)[:-9], "cannot be read: .*[Tt]runcated"),
    ("flipped.txt.gz", gzip.compress(b"text\n" * 5000)[:-5] + b"xxxxx", "cannot be read"),
    ("packed.TXT", gzip.compress(b"text\n"), "holds gzip data; rename it to .*packed.TXT.gz"),
    ("page.parquet", b"<!DOCTYPE html><html>", "is not parquet data in spite of its name"),
    ("rows.jsonl", b"PAR1\x15\x04\x15\x80", "holds parquet data; rename it to .parquet"),
    ("cut.parquet", b"PAR1" + bytes(50), "cannot be read"),
    ("binary.txt", b"fine\n%PDF\0\0", "line 2: holds a NUL"),
    ("utf16.txt", "æøå\n".encode("utf-16-be"), "is not utf-8|holds a NUL"),
    ("marked16.txt", "æøå\n".encode("utf-16"), "is not utf-8. Convert the file to UTF-8, from UTF-16"),
    ("nul.jsonl", b'{"text": "a\\u0000b"}\n', "line 1: holds a NUL")],
    ids=lambda value: value if isinstance(value, str) and "." in value[:20] else "")
def test_what_is_not_what_it_seems_is_named_or_skipped(tmp_path, name, content, problem):
  path, good = tmp_path / name, tmp_path / "z-good.txt"
  path.write_bytes(content)
  good.write_text("good\n")
  with pytest.raises(DataError, match=f"{name}.*{problem}"):
    read(path, good)
  texts, num_skipped = skipping(path, good)
  assert texts[-1] == "good" and num_skipped >= 1
  assert set(texts) <= {"good", "fine", "text"}
  TextFiles((str(path), str(good)), on_error="skip").check()


def test_nothing_but_what_is_skipped_is_refused(tmp_path):
  (tmp_path / "a.txt.gz").write_bytes(b"<html>")
  with pytest.raises(DataError, match="a.txt.gz: holds nothing that can be used"):
    TextFiles((str(tmp_path / "a.txt.gz"),), on_error="skip").check()


def test_what_is_skipped_is_said_once(tmp_path, caplog):
  """However often a run reads a file: to check it, to train a vocabulary, in each epoch."""
  rows, cut = tmp_path / "rows.jsonl", tmp_path / "cut.txt.gz"
  rows.write_text('{"text": "one"}\n{"text": null}\n')
  cut.write_bytes(gzip.compress("\n".join(make_documents(99)).encode())[:-20])
  num_intact = zlib.decompressobj(31).decompress(cut.read_bytes()).count(b"\n")
  for _ in range(3):
    skipping(rows, cut)
  assert sorted(record.getMessage() for record in caplog.records) == [
      f"{cut}: documents read: {num_intact}, blank ones dropped: 0, undecodable sequences replaced by "
      "U+FFFD: 0, records skipped: 1.",
      f"{cut}: the rest of the file is skipped: Truncated compressed stream",
      f"{rows}: documents read: 1, blank ones dropped: 0, undecodable sequences replaced by "
      "U+FFFD: 0, records skipped: 1."]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_all_whole_records_before_damage_are_kept(tmp_path, suffix, share):
  """Beyond the first block as within it, and with nothing but a file's beginning."""
  rows = [json.dumps({"text": f"{i}: {text}"}) for i, text in enumerate(make_documents(20_000))]
  data = COMPRESS[suffix]("\n".join(rows).encode())
  path = tmp_path / f"a.jsonl{suffix}"
  path.write_bytes(data[:int(share * len(data))])
  with pytest.raises(DataError, match="cannot be read") as refusal:
    read(path)
  texts, num_skipped = skipping(path)
  assert f"{path}, line {len(texts) + 1}: cannot be read: Truncated" in str(refusal.value)
  assert num_skipped == 1 and texts == [json.loads(row)["text"] for row in rows[:len(texts)]]
  if suffix == ".gz":
    assert len(texts) == zlib.decompressobj(31).decompress(path.read_bytes()).count(b"\n")
  assert abs(len(texts) - share * len(rows)) < 0.1 * len(rows)


def test_all_records_are_kept_where_only_the_checksum_is_wrong(tmp_path, caplog):
  rows = [json.dumps({"text": text}) for text in make_documents(20_000)]
  data = bytearray(gzip.compress("\n".join([*rows, ""]).encode()))
  data[-6] ^= 255
  path = tmp_path / "a.jsonl.gz"
  path.write_bytes(data)
  assert skipping(path) == ([json.loads(row)["text"] for row in rows], 1)
  assert "incorrect data check" in caplog.text


@pytest.mark.parametrize("name", ["gone.txt", "gone.txt.gz"])
def test_a_file_that_has_gone_is_named(tmp_path, name):
  with pytest.raises(DataError, match=f"{name}: cannot be read: .*No such file"):
    read(tmp_path / name)


def test_no_document_before_damage_is_cut(tmp_path):
  paragraphs = "\n\n".join(f"one {i}\ntwo {i}" for i in range(3000))
  for documents, kept in (("blank_line", "one 0\ntwo 0"), ("file", None)):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(paragraphs.encode())[:-3000])
    texts, _ = skipping(path, documents=documents)
    assert texts[:1] == ([kept] if kept else []) and all(text.count("\n") == 1 for text in texts)
  rows = "text,more\n" + "".join(f'"one {i}\ntwo",x\n' for i in range(3000))
  path = tmp_path / "a.csv.gz"
  path.write_bytes(gzip.compress(rows.encode())[:-1500])
  texts, _ = skipping(path)
  assert texts == [f"one {i}\ntwo" for i in range(len(texts))] and len(texts) > 1000


@pytest.mark.parametrize("row, problem", [
    ({"txt": "a"}, "no field 'text'.*'txt'"), ({"text": None}, "is null"), ({"text": 3}, "is 3"),
    ("{broken", "not JSON"), ("[1]", "not a JSON object")])
def test_wrong_json_rows_are_skipped_on_request(tmp_path, row, problem):
  line = row if isinstance(row, str) else json.dumps(row)
  path = tmp_path / "a.jsonl"
  path.write_text('{"text": "one"}\n' + line + '\n{"text": "two"}\n')
  with pytest.raises(DataError, match=f"a.jsonl, line 2: .*{problem}"):
    read(path)
  assert skipping(path) == (["one", "two"], 1)


def test_undecodable_lines_are_skipped_on_request(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"one\r\nr\xf8d\ntwo")
  assert skipping(path) == (["one", "two"], 1)
  assert skipping(path, documents="file") == ([], 1)
  assert read(path, errors="replace") == ["one", "r\ufffdd", "two"]


def test_skipping_leaves_no_document_cut(tmp_path):
  paragraphs, rows = tmp_path / "a.txt", tmp_path / "a.csv"
  paragraphs.write_bytes(b"one\nr\xf8d\nthree\n\nnext\n")
  assert skipping(paragraphs, documents="blank_line") == (["next"], 1)
  rows.write_bytes(b'id,text\n1,"a\nr\xf8d"\n\xf8,two\n3,three\n')
  assert skipping(rows) == (["two", "three"], 1)
  rows.write_bytes(b"text,\xf8\nr\xf8d,1\n")
  assert read(rows, errors="replace") == ["r\ufffdd"] and skipping(rows) == ([], 1)


def test_csv_fields_hold_line_feeds_and_errors_are_located(tmp_path):
  path = write_csv(tmp_path / "a.csv", [(1, "one\ntwo", "x"), (2, "three", "y")])
  assert read(path) == ["one\ntwo", "three"] and read(path, field="more") == ["x", "y"]
  with pytest.raises(DataError, match="a.csv, line 1: no field 'txet'.*'text'"):
    read(path, field="txet")
  path.write_text(path.read_text() + "4,short\n5,five,z\n")
  with pytest.raises(DataError, match="a.csv, line 5: 2 fields where the header has 3"):
    read(path)
  assert skipping(path) == (["one\ntwo", "three", "five"], 1)
  path.write_text('text\n"never closed\n' + "line\n" * 10)
  with pytest.raises(DataError, match="a.csv, line 2: not CSV"):
    read(path)


def test_csv_with_a_byte_order_mark_crlf_and_a_header_alone(tmp_path):
  path = tmp_path / "a.csv"
  path.write_bytes("\ufefftext,id\r\n\"æ, ø\",1\r\nå,2".encode())
  assert read(path) == ["æ, ø", "å"]
  path.write_bytes(b"text,id\n")
  assert read(path) == []


def test_wrong_csv_line_numbers_far_into_a_file(tmp_path):
  rows = [(i, f"a\nb{d}", "x") for i, d in enumerate(make_documents(3000))]
  path = write_csv(tmp_path / "a.csv", rows)
  path.write_text(path.read_text() + "only one\n")
  with pytest.raises(DataError, match=f"line {1 + 2 * 3000 + 1}: 1 fields"):
    read(path)


def test_parquet_rows(tmp_path):
  texts = ["one", None, "  ", "two", None]
  path = write_parquet(tmp_path / "a.parquet", texts, row_group_size=2)
  with pytest.raises(DataError, match="a.parquet, row 2: is null"):
    read(path)
  assert skipping(path) == (["one", "two"], 2)
  with pytest.raises(DataError, match="no field 'txt'.*'id', 'text', 'n'. Did you mean 'text'"):
    read(path, field="txt")
  with pytest.raises(DataError, match="column 'n' is of double, not of strings"):
    read(path, field="n")


def test_columns_of_one_parquet_file_are_kept_apart(tmp_path):
  texts, titles = [f"text {i}" for i in range(900)], [f"title {i}" for i in range(900)]
  path = tmp_path / "a.parquet"
  pyarrow.parquet.write_table(pyarrow.table({"text": texts, "title": titles}), path)
  pairs = zip(TextFiles((str(path),)).iterate(), TextFiles((str(path),), field="title").iterate())
  assert list(pairs) == list(zip(texts, titles))


def test_a_large_row_group_of_parquet_is_not_held_in_memory(tmp_path):
  texts = [f"{i} " * 1000 for i in range(8000)]
  path = write_parquet(tmp_path / "a.parquet", texts, row_group_size=len(texts),
                       compression="none", use_dictionary=False)
  before = pyarrow.total_allocated_bytes()
  tracemalloc.start()
  block = TextFiles((str(path),)).read(0, 0)
  peak = tracemalloc.get_traced_memory()[1] + pyarrow.total_allocated_bytes() - before
  tracemalloc.stop()
  assert block.texts == texts[:block.next_offset]
  assert peak < 0.25 * path.stat().st_size


def test_dictionary_columns_of_parquet(tmp_path):
  column = pyarrow.array(["a", "b", "a"]).dictionary_encode()
  pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
  assert read(tmp_path / "a.parquet") == ["a", "b", "a"]


def test_hosts_and_positions_work_for_parquet(tmp_path):
  import tensorflow as tf

  from t5jax.data.sources import TextSource

  path = write_parquet(tmp_path / "a.parquet", make_documents(900), row_group_size=400)
  source = TextSource(TextFiles((str(path),)))
  iterator = iter(source.get_dataset("train").repeat())
  for _ in range(500):
    next(iterator)
  tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
  expected = [next(iterator)["text"].numpy() for _ in range(700)]
  other = iter(source.get_dataset("train").repeat())
  tf.train.Checkpoint(iterator=other).read(str(tmp_path / "position")).assert_consumed()
  assert [next(other)["text"].numpy() for _ in range(700)] == expected


def test_tfrecords(tmp_path):
  import tensorflow as tf

  from t5jax.data.sources import tfrecord_source

  def example(text):
    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
    return tf.train.Example(features=tf.train.Features(feature={"text": value})).SerializeToString()

  for name, texts in (("train-0", ["æ", " \n"]), ("train-1", ["ø"]), ("held", ["å"])):
    with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecord")) as writer:
      for text in texts:
        writer.write(example(text))
  source = tfrecord_source(str(tmp_path / "train-*"), str(tmp_path / "held*"))
  rows = list(source.get_dataset("train", shuffle=False).as_numpy_iterator())
  assert [(r["text"].decode(), r["index"]) for r in rows] == [("æ", 0), ("ø", 1)]
  assert [r["text"].decode() for r in source.get_dataset("validation").as_numpy_iterator()] == ["å"]
  with pytest.raises(DataError, match="nothing.*no such files"):
    tfrecord_source(str(tmp_path / "nothing*"), str(tmp_path / "held*"))


@pytest.fixture
def sections(tmp_path):
  root = tmp_path / "dagw" / "sektioner"
  for name in ("ft/ft_1", "ft/ft_2", "botxt/botxt_0000001", "wiki/wiki_1.2"):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(f"{name}\nTaler 3: text", encoding="utf-8")
  for name in ("ft/ft.jsonl", "ft/ft.json", "botxt/LICENSE", "wiki/README.md", "wiki/license.txt"):
    (root / name).write_text("{}", encoding="utf-8")
  return root


def test_danish_gigaword_documents(sections):
  found = dagw.find_documents(sections)
  assert found == dagw.find_documents(sections.parent)
  assert [p.removeprefix(f"{sections}/") for p in found] == [
      "botxt/botxt_0000001", "ft/ft_1", "ft/ft_2", "wiki/wiki_1.2"]
  assert [dagw.section_of(p) for p in found] == ["botxt", "ft", "ft", "wiki"]
  assert len(dagw.find_documents(sections, ["ft"])) == 2
  assert read(*found[:1], documents="file", transform=dagw.strip_speakers) == [
      "botxt/botxt_0000001\ntext"]
  with pytest.raises(SettingError, match=r"sections = 'fx'.*botxt, ft, wiki in .*sektioner\. Did "
                     r"you mean 'ft'\?$"):
    dagw.find_documents(sections, ["fx"])
  with pytest.raises(SettingError, match="directory = .*sektioner"):
    dagw.find_documents(sections / "nowhere")

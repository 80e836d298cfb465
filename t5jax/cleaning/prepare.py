"""Cleans a corpus, from files to shards ready to train on; can be stopped at any time."""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import typing
import zlib

import numpy as np
from tqdm import tqdm

from t5jax.cleaning import stages
from t5jax.cleaning.cleaner import CleaningSettings
from t5jax.cleaning.report import Report
from t5jax.data.text_files import DataError
from t5jax.folders import exclusive, make_folder
from t5jax.settings import AT_LEAST_ONE, RATE, check_settings

_WORD_BINS = 1 << 22


@dataclasses.dataclass(frozen=True)
class PrepareSettings:
  """What is done to a corpus.

  Attributes:
    cleaning: what is done to each document.
    drop_duplicates: drop documents that are exact or near duplicates of an earlier one.
    validation_fraction: of the documents to hold out, by a hash of the first document of each
      cluster of duplicates: no near duplicate of a held-out document is trained on.
    order: of the documents: as in the corpus, or by how likely their words are on average
      ("likely_first", as Cramming trains, or "unlikely_first").
    shard_bytes: of text in each file that is written, before compression.
  """

  cleaning: CleaningSettings = CleaningSettings()
  drop_duplicates: bool = True
  validation_fraction: float = 0.01
  order: typing.Literal["corpus", "likely_first", "unlikely_first"] = "corpus"
  shard_bytes: int = 256_000_000

  def __post_init__(self):
    check_settings(self, validation_fraction=RATE, shard_bytes=AT_LEAST_ONE)

  @property
  def held_out_below(self):
    """The exact_hash, of a cluster's first document, below which the cluster is held out."""
    return int(self.validation_fraction * 2.0**63)


def prepare(corpus, settings, output_dir, num_processes=1):
  """Cleans a corpus.

  The result does not depend on the number of processes, nor on being interrupted. Beside
  what lies in `work/` meanwhile (the kept text once more, and about 540 bytes per document), memory
  holds some 60 bytes per document, and up to 2 GiB of hashes while duplicates are sought.

  Args:
    corpus: a corpora.Corpus.
    settings: PrepareSettings.
    output_dir: gets train-*.jsonl.zst and validation-*.jsonl.zst of {"text", "source", "id"},
      rejected/<rule>.jsonl.zst with "reason" in addition, report.json and report.md.
    num_processes: that clean.

  Returns:
    Report.

  Raises:
    DataError: the text cannot be read, or the folder holds the result of other settings.
  """
  output = make_folder("output_dir", output_dir)
  with exclusive(output, DataError(f"{output}: another process is writing here.")):
    plan = {**corpus.fingerprint(), "settings": dataclasses.asdict(settings)}
    plan = json.loads(json.dumps(plan))  # As it is read back.
    work = output / "work"
    _check_plan(output / "plan.json", plan, begun=(work / "journal.json").exists()
                or (output / "report.json").exists())
    if (output / "report.json").exists():
      shutil.rmtree(work, ignore_errors=True)  # The end of an earlier run may have left it.
      return Report.from_json(json.loads((output / "report.json").read_text(encoding="utf-8")))
    work.mkdir(exist_ok=True)
    report = stages.clean(corpus, settings.cleaning, work, num_processes)
    if not report.counts["kept"]:
      raise DataError(f"{output}: no document is left of {report.counts['read']:,}; what was "
                      f"dropped is in {work / 'rejected.jsonl'}.")
    found = stages.find_duplicates(work)
    _write(settings, output, work, found, report)
    (output / "report.md").write_text(
        report.to_markdown("What was kept", settings.cleaning.warnings()),
        encoding="utf-8")
    stages.write_json(output / "report.json", report.to_json())
    shutil.rmtree(work)
  return report


def _check_plan(path, plan, begun):
  """Keeps the plan, unless the folder holds work, begun or finished, of another: that is refused."""
  earlier = json.loads(path.read_text(encoding="utf-8")) if begun else plan
  flat = [_flatten(value) for value in (earlier, plan)]
  differing = {key for key in flat[0].keys() | flat[1].keys()
               if flat[0].get(key) != flat[1].get(key)}
  if earlier["reading"]["on_error"] == "refuse":
    # What was read held nothing to skip or, unless that was done, to replace: it stays as it is.
    differing -= {"reading.on_error"}
    differing -= {"reading.errors"} if earlier["reading"]["errors"] == "strict" else set()
  differing = sorted(differing)
  if differing:
    more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
    raise DataError(f"{path.parent}: was begun with other settings or files: "
                    f"{', '.join(differing[:5])}{more}. Choose another folder, or delete this one.")
  stages.write_json(path, plan)


def _flatten(value, prefix=""):
  if not isinstance(value, dict):
    return {prefix: value}
  return {name: leaf for key, inner in value.items()
          for name, leaf in _flatten(inner, f"{prefix}.{key}" if prefix else key).items()}


def _write(settings, output, work, found, report):
  """Writes the shards, and what was set apart."""
  offsets = np.fromfile(work / "offsets.u64", np.uint64).astype(np.int64)
  exact = np.fromfile(work / "exact.i64", np.int64)
  ends = np.append(offsets[1:], (work / "kept.jsonl").stat().st_size)
  dropped = np.zeros(len(offsets), bool)
  if settings.drop_duplicates:
    dropped = found["is_exact"] | found["is_near"]
  held_out = exact[found["first"]] < settings.held_out_below
  order = _order(settings.order, work / "kept.jsonl", offsets, ends, dropped)
  for split, chosen in (("train", ~held_out), ("validation", held_out)):
    _write_shards(output, split, work / "kept.jsonl", offsets, ends, order[chosen[order]],
                  settings.shard_bytes)
  _write_rejected(output, work, offsets, found, dropped, report)
  report.counts.update({"train documents": int((~dropped & ~held_out).sum()),
                        "validation documents": int((~dropped & held_out).sum())})


def _order(order, path, offsets, ends, dropped):
  """Numbers of the documents that stay, in the order to write them in."""
  kept = np.flatnonzero(~dropped)
  if order == "corpus":
    return kept
  counts, scores = np.ones(_WORD_BINS), np.empty(len(kept), np.float32)
  for text in _texts(path, offsets[kept], ends[kept], "counting words"):
    np.add.at(counts, _bins(text), 1)
  log_probability = np.log(counts / counts.sum())
  for i, text in enumerate(_texts(path, offsets[kept], ends[kept], "rating documents")):
    bins = _bins(text)
    scores[i] = log_probability[bins].mean() if len(bins) else -math.inf
  return kept[np.argsort(-scores if order == "likely_first" else scores, kind="stable")]


def _bins(text):
  words = text.lower().split()
  return np.array([zlib.crc32(word.encode()) % _WORD_BINS for word in words], np.int64)


def _texts(path, starts, ends, title):
  for line in _lines(path, starts, ends, title):
    yield json.loads(line)["text"]


def _lines(path, starts, ends, title):
  with open(path, "rb") as file, tqdm(desc=title, total=int((ends - starts).sum()), unit="B",
                                      unit_scale=True, mininterval=1) as bar:
    for start, end in zip(starts.tolist(), ends.tolist()):
      file.seek(start)
      yield file.read(end - start)
      bar.update(end - start)


def _write_shards(output, split, path, offsets, ends, order, shard_bytes):
  """Writes documents, in an order, as files of about equal size, skipping those that are there."""
  if not len(order):
    return
  cumulative = np.cumsum(ends[order] - offsets[order])
  numbers = (cumulative - 1) // shard_bytes
  num_shards = int(numbers[-1]) + 1
  for number in range(num_shards):
    target = output / f"{split}-{number:05d}-of-{num_shards:05d}.jsonl.zst"
    if not target.exists():
      mine = order[numbers == number]
      lines = _lines(path, offsets[mine], ends[mine], f"writing {target.name}")
      _write_compressed(target, lines)


def _write_rejected(output, work, offsets, found, dropped, report):
  """Writes what the rules and the search for duplicates dropped, a file for each rule."""
  (output / "rejected").mkdir(exist_ok=True)
  duplicates = np.flatnonzero(dropped)
  with open(work / "kept.jsonl", "rb") as kept, contextlib.ExitStack() as stack:
    files = {}

    def write(rule, row):
      if rule not in files:
        partial = output / "rejected" / f"{rule}.jsonl.zst.partial"
        files[rule] = stack.enter_context(_compressed(partial))
      files[rule].write((json.dumps(row, ensure_ascii=False) + "\n").encode())

    with open(work / "rejected.jsonl", "rb") as rejected:
      for line in rejected:
        row = json.loads(line)
        write(row.pop("dropped_by"), row)
    for number in duplicates.tolist():
      row, first = (_row_at(kept, offsets[i]) for i in (number, found["first"][number]))
      rule = "exact_duplicates" if found["is_exact"][number] else "near_duplicates"
      write(rule, {**row, "reason": f"duplicate of {first['id']}"})
      report.counts["kept"] -= 1
      report.counts["characters kept"] -= len(row["text"])
      report.sources[row["source"]][1] -= 1
      report.sources[row["source"]][3] -= len(row["text"])
      report.drop(rule, "duplicate", row["id"], row["text"])
  for rule in files:
    partial = output / "rejected" / f"{rule}.jsonl.zst.partial"
    os.replace(partial, partial.with_suffix(""))


def _row_at(file, offset):
  file.seek(int(offset))
  return json.loads(file.readline())


def _write_compressed(target, lines):
  partial = target.with_name(f"{target.name}.partial")
  with _compressed(partial) as file:
    for line in lines:
      file.write(line)
  os.replace(partial, target)


def _compressed(path):
  import pyarrow

  return pyarrow.output_stream(str(path), compression="zstd")

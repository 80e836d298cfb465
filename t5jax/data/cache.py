"""Tokenises a task once, to files that cached.py reads.

A cache is CACHE_DIR/<task>/<split>/: the token ids of all documents, one behind the other, as plain
little-endian integers in one file per process that wrote (uint16 where the vocabulary allows), and
info.json, written last, that says what they are. Objective and lengths are the reader's choice.
A build that was stopped goes on from the last position it noted, a few seconds back.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import multiprocessing
import os
import pathlib
import tempfile
import time

import numpy as np
from tqdm import tqdm

from t5jax.data.cached import INFO_NAME, source_of
from t5jax.data.iterator import sentencepiece_of
from t5jax.data.online import Elements
from t5jax.data.processes import end_with_parent
from t5jax.data.text_files import DataError
from t5jax.data.vocabulary import Vocabulary
from t5jax.folders import exclusive, make_folder, write_atomically

_NOTE_SECONDS = 10  # Between two notes of the position.
_POLL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class CacheReport:
  """What a cache of one split holds.

  Attributes:
    folder: where.
    num_documents: that were tokenised.
    num_tokens: ids, without EOS.
    num_bytes: of the files.
  """

  folder: str
  num_documents: int
  num_tokens: int
  num_bytes: int

  def __str__(self):
    return (f"{self.folder}: {self.num_documents:,} documents, {self.num_tokens:,} tokens, "
            f"{self.num_bytes:,} bytes")


def build(data, cache_dir, num_processes=1):
  """Caches all splits of a task, or of the parts of a mixture; what is finished is left alone.

  Args:
    data: a TaskData; its vocabulary is trained if need be, and lies in the cache from then on.
    cache_dir: folder of all caches.
    num_processes: that read and tokenise. Tokenising uses all cores in any case; what one process
      cannot share is reading, about 60 MB/s. A build goes on with the number it began with.

  Returns:
    List of CacheReport.

  Raises:
    DataError: the text cannot be read, there is a cache of other text or another vocabulary, or the
      task is not for pretraining.
  """
  data = dataclasses.replace(data, use_cached=False, cache_dir=None)
  data.check()
  if isinstance(data.task, str):
    _check_objectives(data)
  folder = make_folder("cache_dir", cache_dir)
  with exclusive(folder, DataError(f"{folder}: another process is writing here.")):
    data.prepare(folder / data.name)
    splits = {task.name: task.splits for task in data.tasks("train")}
    return [_build_split(data, cache_dir, task, split, num_processes)
            for task in splits for split in splits[task]]


def _check_objectives(data):
  """Refuses, before anything is written, registered tasks of which no stream of tokens can be kept."""
  with tempfile.TemporaryDirectory() as folder:
    data.prepare(folder)
  from t5jax.data import preprocessors

  for task in data.tasks("train"):
    if preprocessors.objective_of(task) is None:
      raise DataError(f"task {task.name!r}: only tasks whose one preprocessor is "
                      "t5jax.data.preprocessors.pretrain can be cached here; for others there is "
                      "seqio_cache_tasks, whose caches USE_CACHED_TASKS reads as well.")


def _build_split(data, cache_dir, task_name, split, num_processes):
  folder = pathlib.Path(cache_dir).expanduser() / task_name / split
  folder.mkdir(parents=True, exist_ok=True)
  task = _task(data, task_name)
  vocabulary = Vocabulary.of(sentencepiece_of(task))
  plan = {"task": task_name, "split": split, "vocabulary": vocabulary.sha256,
          "dtype": _dtype(vocabulary).name, "source": source_of(task, split), "num_parts": num_processes}
  if finished := _agreed(folder / INFO_NAME, plan, ignored={"num_parts"}):
    return _report(folder, finished)
  if not _agreed(folder / "plan.json", plan):
    _write_json(folder / "plan.json", plan)
  jobs = [(data, cache_dir, task_name, split, part, num_processes) for part in range(num_processes)]
  with tqdm(desc=f"{task_name}/{split}", unit=" tokens", unit_scale=True, mininterval=1) as bar:
    if num_processes == 1:
      parts = [_write_part(*jobs[0], bar)]
    else:
      parts = _in_processes(jobs, folder, _dtype(vocabulary).itemsize, bar)
  info = {**plan, "parts": parts, "digest": _digest(folder, parts)}
  if not sum(part["num_tokens"] for part in parts):
    raise DataError(f"task {task_name!r}: its {split} split is empty.")
  _write_json(folder / INFO_NAME, info)
  for leftover in [folder / "plan.json", *folder.glob("*.position*")]:
    leftover.unlink()
  return _report(folder, info)


def _in_processes(jobs, folder, itemsize, bar):
  """Runs _write_part in processes of their own; returns what they return."""
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(len(jobs), context, end_with_parent) as pool:
    running = [pool.submit(_write_part, *job) for job in jobs]
    while not all(future.done() for future in running):
      time.sleep(_POLL_SECONDS)
      bar.update(sum(f.stat().st_size for f in folder.glob("*.tokens")) // itemsize - bar.n)
    return [future.result() for future in running]


def _write_part(data, cache_dir, task_name, split, part, num_parts, bar=None):
  """Tokenises a share of a split; returns {"file", "num_tokens", "num_documents"}."""
  folder = pathlib.Path(cache_dir).expanduser() / task_name / split
  if bar is None:  # In a process of its own nothing is registered yet.
    data.prepare(pathlib.Path(cache_dir).expanduser() / data.name)
  task = _task(data, task_name)
  path = folder / f"{part:05d}-of-{num_parts:05d}.tokens"
  note, vocabulary = _Note(path), Vocabulary.of(sentencepiece_of(task))
  dtype, groups = _dtype(vocabulary), Elements(_groups(task, split, part, num_parts, vocabulary))
  with open(path, "ab") as file:
    note.restore(file, groups)
    for group in groups:
      tokens = group["tokens"].numpy().astype(dtype)
      file.write(tokens.tobytes())
      note.add(len(tokens), len(group["lengths"]))
      if bar is not None:
        bar.update(note.num_tokens - bar.n)
      note.save_if_due(file, groups)
    file.flush()
    os.fsync(file.fileno())
  return {"file": path.name, "num_tokens": note.num_tokens, "num_documents": note.num_documents}


class _Note:
  """How far a part has come: counts, and the position in the text, on disk every few seconds."""

  def __init__(self, path):
    self._path = path.with_suffix(".position.json")
    self._saved = 0
    self._time = time.monotonic()
    self.num_tokens = self.num_documents = 0

  def add(self, num_tokens, num_documents):
    self.num_tokens += num_tokens
    self.num_documents += num_documents

  def restore(self, file, groups):
    """Cuts the file back to the last note, and goes on reading from there."""
    if self._path.exists():
      state = json.loads(self._path.read_text())
      path = str(self._path.with_name(state["checkpoint"]))
      groups.checkpoint().read(path).assert_consumed()
      self.num_tokens, self.num_documents = state["num_tokens"], state["num_documents"]
      file.truncate(state["num_bytes"])
    else:
      file.truncate(0)
    file.seek(0, os.SEEK_END)

  def save_if_due(self, file, groups):
    if time.monotonic() - self._time < _NOTE_SECONDS:
      return
    file.flush()
    os.fsync(file.fileno())
    old = set(self._path.parent.glob(f"{self._path.stem}-*"))
    self._saved += 1
    prefix = self._path.with_name(f"{self._path.stem}-{os.getpid()}-{self._saved}")
    groups.checkpoint().write(str(prefix))
    _write_json(self._path, {
        "checkpoint": prefix.name, "num_bytes": file.tell(), "num_tokens": self.num_tokens,
        "num_documents": self.num_documents})
    for path in old:
      path.unlink()
    self._time = time.monotonic()


def _groups(task, split, part, num_parts, vocabulary):
  import seqio

  from t5jax.data import preprocessors

  shard = seqio.ShardInfo(part, num_parts) if num_parts > 1 else None
  documents = task.source.get_dataset(split, shuffle=False, shard_info=shard)
  return preprocessors.deterministic(preprocessors.tokenize(documents, vocabulary)).prefetch(4)


def _task(data, name):
  return next(task for task in data.tasks("train") if task.name == name)


def _dtype(vocabulary):
  return np.dtype(np.uint16 if vocabulary.num_pieces <= 1 << 16 else np.uint32)


def _agreed(path, plan, ignored=()):
  """Returns what a file of an earlier build says, None if there is none; raises if it differs."""
  if not path.exists():
    return None
  found = json.loads(path.read_text())
  differing = [key for key in plan if key not in ignored and found[key] != plan[key]]
  if differing:
    raise DataError(f"{path.parent}: is a cache with another {' and '.join(differing)}. Delete the "
                    "folder, or choose another CACHE_DIR.")
  return found


def _digest(folder, parts):
  """A hash of all tokens, which tells two caches apart."""
  digest = hashlib.blake2b(digest_size=16)
  for part in parts:
    with open(folder / part["file"], "rb") as file:
      while data := file.read(1 << 22):
        digest.update(data)
  return digest.hexdigest()


def _report(folder, info):
  counts = {key: sum(part[key] for part in info["parts"])
            for key in ("num_documents", "num_tokens")}
  return CacheReport(str(folder), num_bytes=counts["num_tokens"] * np.dtype(info["dtype"]).itemsize,
                     **counts)


def _write_json(path, value):
  write_atomically(path, json.dumps(value, indent=1))

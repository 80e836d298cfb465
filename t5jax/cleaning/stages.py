"""The three stages of cleaning a corpus on one machine: clean, find duplicates, write.

    clean       documents through all rules, on all cores; kept ones with their signatures
    find        duplicates among what was kept
    write       shards of training and validation text, and what was set apart

All that is between the stages lies in `work/` of the output folder. Results are appended in the
order of the corpus, whatever the number of processes, and a journal says up to which byte of which
file they are complete: whoever starts again cuts off what came later and goes on from there.
"""

import collections
import concurrent.futures.process
import json
import multiprocessing
import os
import time

import numpy as np
from tqdm import tqdm

from t5jax.cleaning import duplicates
from t5jax.cleaning.cleaner import Cleaner, Document
from t5jax.cleaning.report import Report
from t5jax.data.processes import end_with_parent
from t5jax.data.text_files import DataError
from t5jax.folders import write_atomically

_JOURNAL_SECONDS = 5
_MAX_BATCH_BYTES = 1 << 18
_IN_FLIGHT = 4  # Batches per process that are read ahead.


class Journal:
  """Files that grow together, and the last moment at which they fitted together.

  Attributes:
    state: dict of what else belongs to that moment; anything JSON holds.
  """

  def __init__(self, folder, names, state):
    """Opens the files of a folder, cut back to the last note, or empty.

    Args:
      folder: a pathlib.Path.
      names: of the files.
      state: of a beginning.
    """
    self._path = folder / "journal.json"
    sizes = dict.fromkeys(names, 0)
    if self._path.exists():
      found = json.loads(self._path.read_text())
      sizes, state = found["sizes"], found["state"]
    self.state = state
    self._files = {}
    for name, size in sizes.items():
      self._files[name] = open(folder / name, "ab")
      self._files[name].truncate(size)
      self._files[name].seek(0, os.SEEK_END)
    self._noted = time.monotonic()

  def write(self, name, data):
    """Appends bytes to a file."""
    self._files[name].write(data)

  def size(self, name):
    """Returns the size of a file."""
    return self._files[name].tell()

  def is_due(self):
    """Returns whether the last note is some seconds old."""
    return time.monotonic() - self._noted > _JOURNAL_SECONDS

  def note(self):
    """Notes the moment on disk."""
    for file in self._files.values():
      file.flush()
      os.fsync(file.fileno())
    sizes = {name: file.tell() for name, file in self._files.items()}
    write_json(self._path, {"sizes": sizes, "state": self.state})
    self._noted = time.monotonic()

  def close(self):
    """Notes the moment and closes the files."""
    self.note()
    for file in self._files.values():
      file.close()


def write_json(path, value):
  """Writes a JSON file, in whole or not at all."""
  write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False))


def clean(corpus, settings, work, num_processes):
  """Takes every document of a corpus through the rules.

  Args:
    corpus: a corpora.Corpus.
    settings: CleaningSettings.
    work: folder, a pathlib.Path; gets kept.jsonl, rejected.jsonl, and of the kept documents
      offsets.u64, exact.i64 and signatures.u32.
    num_processes: that clean.

  Returns:
    Report.
  """
  start = {"file": 0, "offset": 0, "bytes": 0, "done": False, "report": Report().to_json()}
  journal = Journal(work, ("kept.jsonl", "rejected.jsonl", "offsets.u64", "exact.i64",
                           "signatures.u32"), start)
  report = Report.from_json(journal.state["report"])
  if not journal.state["done"]:
    bar = tqdm(desc="cleaning", total=corpus.num_bytes(), initial=journal.state["bytes"],
               unit="B", unit_scale=True, mininterval=1)
    with bar, _Pool(settings, num_processes) as pool:
      batches = corpus.batches(journal.state["file"], journal.state["offset"], _MAX_BATCH_BYTES)
      for batch, results in pool.map(batches):
        report.counts.update(batch.counts)
        for result in results:
          _append(journal, report, *result)
        journal.state.update(file=batch.file, offset=batch.next_offset,
                             bytes=journal.state["bytes"] + batch.num_bytes)
        bar.update(batch.num_bytes)
        if journal.is_due():
          journal.state["report"] = report.to_json()
          journal.note()
    journal.state.update(done=True, report=report.to_json())
  journal.close()
  return report


def _append(journal, report, verdict, exact, signature):
  report.add(verdict)
  row = verdict.document._asdict()
  if verdict.dropped_by is not None:
    row.update(dropped_by=verdict.dropped_by, reason=verdict.reason)
    journal.write("rejected.jsonl", _json_line(row))
    return
  journal.write("offsets.u64", np.uint64(journal.size("kept.jsonl")).tobytes())
  journal.write("kept.jsonl", _json_line(row))
  journal.write("exact.i64", np.int64(exact).tobytes())
  journal.write("signatures.u32", signature.tobytes())


def _json_line(row):
  return (json.dumps(row, ensure_ascii=False) + "\n").encode()


class _Pool:
  """Processes that clean batches, whose results come back in order, few batches ahead."""

  def __init__(self, settings, num_processes):
    self._settings, self._count = settings, num_processes

  def __enter__(self):
    self._pool = None
    if self._count == 1:
      _start_process(self._settings)
    else:
      context = multiprocessing.get_context("spawn")
      self._pool = concurrent.futures.ProcessPoolExecutor(
          self._count, mp_context=context, initializer=_start_worker, initargs=(self._settings,))
    return self

  def __exit__(self, *error):
    if self._pool is not None:
      self._pool.shutdown(cancel_futures=True)

  def map(self, batches):
    """Yields (batch, what _clean_batch returns for it)."""
    if self._pool is None:
      yield from ((batch, _clean_batch(batch.documents)) for batch in batches)
      return
    running = collections.deque()
    try:
      for batch in batches:
        running.append((batch, self._pool.submit(_clean_batch, batch.documents)))
        if len(running) >= _IN_FLIGHT * self._count:
          batch, future = running.popleft()
          yield batch, future.result()
      for batch, future in running:
        yield batch, future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
      raise DataError("a process was ended from outside, perhaps for want of memory. The same "
                      "command goes on from here; fewer workers need less.") from error


_cleaner = None


def _start_worker(settings):
  end_with_parent()
  _start_process(settings)


def _start_process(settings):
  global _cleaner
  _cleaner = Cleaner(settings)


def _clean_batch(documents):
  results = []
  for document in documents:
    verdict = _cleaner(Document(*document))
    kept = verdict.dropped_by is None
    text = verdict.document.text
    results.append((verdict, duplicates.exact_hash(text) if kept else 0,
                    duplicates.signature(text) if kept else None))
  return results


def find_duplicates(work):
  """Finds the duplicates among the documents that `clean` kept.

  Args:
    work: the folder of `clean`; gets duplicates.npz.

  Returns:
    dict of arrays: "first", "is_exact" and "is_near", as duplicates.find_duplicates returns them.
  """
  path = work / "duplicates.npz"
  if not path.exists():
    exact = np.fromfile(work / "exact.i64", np.int64)
    shape = len(exact), duplicates.NUM_HASHES
    signatures = (np.memmap(work / "signatures.u32", np.uint32, "r", shape=shape) if len(exact)
                  else np.zeros(shape, np.uint32))  # An empty file cannot be mapped.
    first, is_exact, is_near = duplicates.find_duplicates(exact, signatures)
    with open(f"{path}.partial", "wb") as file:
      np.savez(file, first=first, is_exact=is_exact, is_near=is_near)
    os.replace(f"{path}.partial", path)
  with np.load(path) as found:
    return dict(found)

"""Measures input pipelines for T5's span corruption on the same text, vocabulary and machine.

    python tools/bench_data.py --files='corpus/*.jsonl' --vocab_file=spiece.model

Pipelines, each in a process of its own, in turns: `online`, t5jax tokenising as it goes; `cached`,
t5jax reading what cache_task.py would write, whose making is timed apart; `nanot5`, the peer in
bench_peers.py (pip install '.[bench]'). Without --files it reads the text of the demo. Takes
minutes; run it alone on the machine: `others` in its output says whether it was. Linux only, as
memory and CPU time come from /proc.
"""

import argparse
import concurrent.futures
import dataclasses
import importlib.util
import itertools
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np
from tqdm import tqdm

from t5jax.data.iterator import TaskData
from t5jax.data.objectives import SpanCorruption
from t5jax.data.processes import end_with_parent
from t5jax.data.text_files import DataError
from t5jax.data.vocabulary import Vocabulary
from t5jax.settings import AT_LEAST_ONE, NON_NEGATIVE, SettingError, check_numbers
from t5jax.tasks.demo import demo_corpus
from t5jax.tasks.text import TextCorpus
from t5jax.tools import bench_peers, process_usage

PIPELINES = ("online", "cached", "nanot5")
PEER = "nanot5"
_LENGTHS = {"inputs": 512, "targets": 114}
_RAW_LENGTH = SpanCorruption().longest_segment(_LENGTHS)  # Tokens before masking: 568.
_NUM_FILES = 4  # The peer's workers share whole files.
_LEAST_BYTES = 100_000  # Of less, a file of four might not fill a single example.


@dataclasses.dataclass(frozen=True)
class Bench:
  """What is the same for all pipelines.

  Attributes:
    files: JSON lines with the field "text".
    vocab_file: a SentencePiece model.
    folder: for caches and tokenizers.
    batch_size: examples per step.
    peer_shuffle_buffer: rows in the buffer of each worker of the peer.
  """

  files: tuple
  vocab_file: str
  folder: str
  batch_size: int
  peer_shuffle_buffer: int

  def task_data(self, use_cached=False):
    """Returns the TaskData of t5jax on all of the text, ready to be read."""
    corpus = TextCorpus(files=list(self.files), vocab_file=self.vocab_file, name="bench",
                        validation_fraction=0.0)
    data = TaskData(corpus, _LENGTHS, self.batch_size, use_cached=use_cached,
                    cache_dir=os.path.join(self.folder, "cache"))
    data.prepare(os.path.join(self.folder, "run"))
    return data

  def iterator(self, pipeline):
    """Returns the endless batches of a pipeline."""
    if pipeline == PEER:
      return bench_peers.nanot5_batches(self.files, self.vocab_file,
                                        os.path.join(self.folder, "tokenizer"), _RAW_LENGTH,
                                        self.batch_size, self.peer_shuffle_buffer)
    return self.task_data(pipeline == "cached").train_iterator()


@dataclasses.dataclass(frozen=True)
class Figures:
  """What one run of a pipeline took.

  Attributes:
    first_batch: seconds from asking for the first batch until it was there.
    examples: per second, over the steps behind the warm-up.
    all_examples: per second, from the asking for the first batch on.
    cpu: seconds of all its processes per million tokens, over the same steps as `examples`.
    others: cores that other processes of the machine kept busy meanwhile.
    memory: {step: resident bytes}, child processes with what they alone hold.
  """

  first_batch: float
  examples: float
  all_examples: float
  cpu: float
  others: float
  memory: dict


def measure(bench, pipeline, num_warmup, num_steps, title):
  """Runs a pipeline in this process.

  Args:
    bench: Bench.
    pipeline: one of PIPELINES.
    num_warmup: steps before those that are timed.
    num_steps: steps that are timed; memory is read after a sixth of them and at their end.
    title: of the progress bar.

  Returns:
    Figures.

  Raises:
    DataError: a batch is not what it should be.
  """
  batches = bench.iterator(pipeline)
  begin = time.monotonic()
  _check(next(batches), bench.batch_size)
  first_batch = time.monotonic() - begin
  for _ in range(num_warmup - 1):
    next(batches)
  memory, start = {}, time.monotonic()
  own, machine = process_usage.cpu_seconds(), process_usage.machine_cpu_seconds()
  for step in tqdm(range(1, num_steps + 1), title, unit=" steps", leave=False, mininterval=1):
    next(batches)
    if step in (max(num_steps // 6, 1), num_steps):
      memory[step] = process_usage.resident_bytes()
  own = process_usage.cpu_seconds() - own
  machine = process_usage.machine_cpu_seconds() - machine
  end = time.monotonic()
  num_examples = num_steps * bench.batch_size
  return Figures(
      first_batch, num_examples / (end - start),
      (num_warmup * bench.batch_size + num_examples) / (end - begin),
      own / (num_examples * _RAW_LENGTH / 1e6), max(machine - own, 0) / (end - start), memory)


def _check(batch, batch_size):
  """Refuses to measure what are not full examples."""
  arrays = [np.asarray(batch[name]) for names in
            (("encoder_input_tokens", "decoder_target_tokens"), ("input_ids", "labels"))
            for name in names if name in batch]
  shapes = [x.shape for x in arrays]
  if shapes != [(batch_size, n) for n in _LENGTHS.values()] or not all(x.all() for x in arrays):
    raise DataError(f"batches are of {shapes}, or padded: the text is too short.")


def build_cache(bench):
  """Tokenises the text in this process; returns (tokens, seconds, CPU seconds)."""
  from t5jax.data import cache

  data = bench.task_data()
  start, cpu = time.monotonic(), process_usage.cpu_seconds()
  reports = cache.build(data, os.path.join(bench.folder, "cache"))
  return (sum(report.num_tokens for report in reports), time.monotonic() - start,
          process_usage.cpu_seconds() - cpu)


def _in_own_process(function, *arguments):
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, context, end_with_parent) as pool:
    return pool.submit(function, *arguments).result()


def write_text(documents, folder, num_bytes):
  """Deals documents out to files, so that all pipelines read the same.

  Args:
    documents: iterable of str.
    folder: an existing folder.
    num_bytes: of text, UTF-8, after which to stop.

  Returns:
    (paths of the files, number of documents, bytes of text).

  Raises:
    DataError: there is too little text.
  """
  paths = [os.path.join(folder, f"{i}.jsonl") for i in range(_NUM_FILES)]
  files = [open(path, "w", encoding="utf-8") for path in paths]
  count = written = 0
  for text, file in zip(documents, itertools.cycle(files)):
    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    count, written = count + 1, written + len(text.encode())
    if written >= num_bytes:
      break
  for file in files:
    file.close()
  if written < _LEAST_BYTES:
    raise DataError(f"the text has {written:,} bytes; at least {_LEAST_BYTES:,} are needed.")
  return tuple(paths), count, written


def make_bench(options, folder):
  """Returns (Bench, a line about it) of the command's flags, its text written into a folder."""
  if options.files:
    corpus = TextCorpus(files=options.files, field=options.field, vocab_file=options.vocab_file)
    corpus.check(_LENGTHS)
    documents = corpus.training_text().iterate()
  else:
    corpus = dataclasses.replace(demo_corpus(), **(
        {"vocab_file": options.vocab_file, "vocab_size": None} if options.vocab_file else {}))
    documents = itertools.cycle(corpus.training_text().iterate())
  vocab_file = corpus.vocabulary_file(folder)
  files, count, written = write_text(documents, folder, options.megabytes * 1e6)
  line = (f"{written / 1e6:,.1f} MB of text in {count:,} documents and {len(files)} files, "
          f"{Vocabulary(vocab_file).num_pieces:,} pieces; batches of {options.batch_size} at "
          f"{_LENGTHS['inputs']}/{_LENGTHS['targets']}; {os.cpu_count()} cores, load "
          f"{os.getloadavg()[0]:.1f}")
  return Bench(files, vocab_file, folder, options.batch_size, options.peer_shuffle_buffer), line


def main(arguments=None):
  """Measures what the flags say; prints a line for each pipeline, ratio and memory figure."""
  options = parse_arguments(arguments)
  with tempfile.TemporaryDirectory() as folder:
    bench, line = make_bench(options, folder)
    print(line, flush=True)
    _run(options, bench)


def _run(options, bench):
  if "cached" in options.pipelines:
    tokens, seconds, cpu = _in_own_process(build_cache, bench)
    print(f"building the cache: {tokens:,} tokens in {seconds:.1f} s, {tokens / seconds:,.0f} "
          f"tokens/s, {tokens / cpu:,.0f} tokens per CPU-second")
  found = {pipeline: [] for pipeline in options.pipelines}
  for repeat in range(options.repeats):
    for pipeline in options.pipelines:
      title = f"{pipeline} {repeat + 1}/{options.repeats}"
      found[pipeline].append(
          _in_own_process(measure, bench, pipeline, options.warmup, options.steps, title))
  print(f"min / median / max of {options.repeats} runs of {options.steps} steps behind "
        f"{options.warmup} of warm-up; an example is {_RAW_LENGTH} tokens of text before masking")
  for pipeline, figures in found.items():
    print(throughput_line(pipeline, figures))
  for line in ratio_lines(found):
    print(line)
  for pipeline in options.pipelines if options.memory_steps else ():
    if pipeline != PEER:
      figures = _in_own_process(measure, bench, pipeline, 1, options.memory_steps,
                                f"{pipeline}, memory")
      print(f"{pipeline}, memory: {_memory(figures)}")


def throughput_line(pipeline, figures):
  """Returns one line about the runs of a pipeline, a list of Figures."""
  def spread(values, form=",.0f"):
    return " / ".join(f"{x:{form}}" for x in (min(values), statistics.median(values), max(values)))

  examples = [f.examples for f in figures]
  growths = sorted(figures, key=_growth)
  return (f"{pipeline}: {spread(examples)} examples/s, "
          f"{spread([x * _RAW_LENGTH for x in examples])} tokens/s, "
          f"{spread([f.cpu for f in figures], '.3f')} CPU-seconds per million tokens; first batch "
          f"after {spread([f.first_batch for f in figures], '.1f')} s, with that and the warm-up "
          f"{spread([f.all_examples for f in figures])} examples/s; "
          f"{_memory(growths[len(growths) // 2])}, at most {_growth(growths[-1]):+.1%}; others on "
          f"{spread([f.others for f in figures], '.2f')} cores")


def ratio_lines(found):
  """Yields how many times as fast as the peer each other pipeline is, of {pipeline: [Figures]}."""
  peer = [f.examples for f in found.get(PEER, ())]
  for pipeline in found if peer else ():
    if pipeline != PEER:
      own = [f.examples for f in found[pipeline]]
      yield (f"{pipeline} / {PEER}: {statistics.median(own) / statistics.median(peer):.2f}x, "
             f"slowest run against its fastest {min(own) / max(peer):.2f}x")


def _growth(figures):
  first, last = figures.memory[min(figures.memory)], figures.memory[max(figures.memory)]
  return last / first - 1


def _memory(figures):
  points = ", ".join(f"{size / 1e6:,.0f} MB at step {step:,}"
                     for step, size in figures.memory.items())
  return f"{points}, {_growth(figures):+.1%}"


def parse_arguments(arguments=None):
  """Returns the flags; raises SettingError where one cannot work, or a package is missing."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
  parser.add_argument("--files", nargs="+", help="text files; globs. Default: the demo's text")
  parser.add_argument("--field", default="text", help="of .jsonl rows")
  parser.add_argument("--vocab_file", help="SentencePiece model, needed for --files")
  parser.add_argument("--megabytes", type=float, default=200, help="most text to use; the "
                      "demo's is repeated up to it")
  parser.add_argument("--batch_size", type=int, default=128)
  parser.add_argument("--steps", type=int, default=600, help="of each run")
  parser.add_argument("--warmup", type=int, default=20, help="steps before them")
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--memory_steps", type=int, default=3000, help="steps after which memory is "
                      "compared with that after a sixth of them; 0 for no such run")
  parser.add_argument("--peer_shuffle_buffer", type=int, default=10_000, help="rows, as in nanoT5")
  parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES), choices=PIPELINES)
  options = parser.parse_args(arguments)
  check_numbers("bench_data", memory_steps=(options.memory_steps, NON_NEGATIVE), **{
      name: (getattr(options, name), AT_LEAST_ONE)
      for name in ("batch_size", "steps", "warmup", "repeats", "peer_shuffle_buffer")})
  if options.files and not options.vocab_file:
    raise SettingError("--vocab_file", None, "a SentencePiece model where --files are given")
  missing = [name for name in bench_peers.PACKAGES if importlib.util.find_spec(name) is None]
  if PEER in options.pipelines and missing:
    raise SettingError("--pipelines", PEER, f"others while {', '.join(missing)} cannot be "
                       "imported: pip install '.[bench]'")
  if not process_usage.available():
    raise SettingError("bench_data", sys.platform, "Linux: memory and CPU time come from /proc")
  return options


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  try:
    main()
  except ValueError as error:
    sys.exit(f"bench_data: {error}")

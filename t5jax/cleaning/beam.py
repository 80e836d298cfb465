"""The same cleaning as a pipeline of Apache Beam, for corpora beyond one machine.

What stays, what is held out and what is dropped, and why, are as `prepare` has them; in which file
and at which place of it a document lies is up to the runner. Every step but one is spread over all
workers: pairs of near duplicates, without their texts, are joined to clusters on one.
"""

import heapq
import itertools
import json

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from t5jax.cleaning import duplicates, rules
from t5jax.cleaning.cleaner import Cleaner, Document, Verdict
from t5jax.cleaning.report import Report
from t5jax.data.text_files import DataError
from t5jax.settings import SettingError

_RULES = (rules.WebLines.name, rules.Length.name, rules.Repetition.name,
          rules.TokensPerCharacter.name, rules.Language.name, "exact_duplicates", "near_duplicates")
_CHUNK = 1000  # Members of a bucket that are compared at a time.


def prepare_on_beam(corpus, settings, output_dir, options=()):
  """Cleans a corpus on a runner of Beam.

  Args:
    corpus: a corpora.Corpus, whose files every worker can read. A file is read by one worker: many
      files keep many workers busy.
    settings: prepare.PrepareSettings; the number of shards is the runner's choice.
    output_dir: as of `prepare`; a folder, or the address of one that Beam knows.
    options: list of flags for Beam, such as ["--runner=FlinkRunner"].

  Raises:
    SettingError: the settings ask for an order.
    DataError: the folder already holds a result.
  """
  if settings.order != "corpus":
    raise SettingError("order", settings.order, "'corpus' with Beam, whose files have no order")
  if FileSystems.exists(FileSystems.join(output_dir, "report.json")):
    raise DataError(f"{output_dir}: already holds a result. Choose another folder, or delete it.")
  with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
    _build(pipeline, corpus, settings, output_dir)


def _build(pipeline, corpus, settings, output_dir):
  """Connects the steps. A document's key is (number of its file, number in it)."""
  read = (pipeline | beam.Create(range(len(corpus.files.paths))) | beam.Reshuffle()
          | "read" >> beam.FlatMap(_read, corpus).with_outputs("counts", main="documents"))
  cleaned = (read.documents | "spread" >> beam.Reshuffle()
             | beam.ParDo(_Clean(settings.cleaning)).with_outputs("dropped", main="kept"))
  pairs = (cleaned.kept | beam.Map(_without_text) | "equal" >> beam.GroupByKey()
           | beam.FlatMap(_bands) | "similar" >> beam.GroupByKey() | beam.FlatMap(_near_pairs)
           | beam.Distinct())
  clusters = pairs | beam.combiners.ToList() | beam.FlatMap(_clusters)
  judged = ({"documents": cleaned.kept, "cluster": clusters} | beam.CoGroupByKey()
            | "judge" >> beam.FlatMap(_judge, settings.drop_duplicates,
                                      settings.held_out_below))
  judged = (judged, cleaned.dropped) | beam.Flatten()
  for name in ("train", "validation", *(f"rejected/{rule}" for rule in _RULES)):
    _write(judged, name, FileSystems.join(output_dir, *name.split("/")))
  report = (judged, read.counts) | "all" >> beam.Flatten() | beam.CombineGlobally(_ReportFn())
  notes = settings.cleaning.warnings()
  for name, shown in (("report.json", beam.Map(_report_json)),
                      ("report.md", beam.Map(Report.to_markdown, "What was kept", notes))):
    _ = (report | f"show {name}" >> shown | f"write {name}" >> beam.io.WriteToText(
        FileSystems.join(output_dir, name), shard_name_template="", num_shards=1,
        append_trailing_newlines=False))


def _read(file, corpus):
  """Yields ((file, number), (text, source, id)) of the documents of a file, and what was met."""
  number = 0
  for batch in corpus.batches(file, end=file + 1):
    yield beam.pvalue.TaggedOutput("counts", ("", dict(batch.counts)))
    for document in batch.documents:
      yield (file, number), tuple(document)
      number += 1


class _Clean(beam.DoFn):
  """(key, document) to (hash of the text, (key, document, rules, length, signature)).

  The rules are those that changed the text, the length is what it was as it was read.
  """

  def __init__(self, settings):
    self._settings = settings

  def setup(self):
    self._cleaner = Cleaner(self._settings)

  def process(self, element):
    key, document = element
    verdict = self._cleaner(Document(*document))
    if verdict.dropped_by is not None:
      verdict = (tuple(verdict.document), *verdict[1:])
      yield beam.pvalue.TaggedOutput("dropped", (f"rejected/{verdict[1]}", verdict))
      return
    text = verdict.document.text
    yield duplicates.exact_hash(text), (
        key, tuple(verdict.document), verdict.changed_by, verdict.num_characters,
        duplicates.signature(text).tobytes())


def _without_text(element):
  exact, (key, document, _, _, signature) = element
  return exact, (key, document[2], signature)


def _bands(element):
  """Yields the first of the documents of equal text under the hash of each band."""
  exact, copies = element
  key, name, signature = min(copies)
  hashes = duplicates.band_hashes(np.frombuffer(signature, np.uint32)[None],
                                  range(duplicates.NUM_BANDS))[:, 0]
  for band, value in enumerate(hashes.tolist()):
    if value:  # It is odd: half of it is as good, and fits a signed number.
      yield (band, value >> 1), (key, exact, name, signature)


def _near_pairs(element):
  """Yields pairs of (key, exact hash, id), the earlier first, as duplicates.earlier_copies does."""
  _, members = element
  first = heapq.nsmallest(duplicates.COMPARED, members)
  yield from _compare(first, [], 1)
  if len(first) == duplicates.COMPARED:
    later = (member for member in members if member > first[-1])
    while chunk := list(itertools.islice(later, _CHUNK)):
      yield from _compare(first, chunk, len(first))


def _compare(first, chunk, begin):
  members = [*first, *chunk]
  signatures = np.stack([np.frombuffer(member[3], np.uint32) for member in members])
  for earlier, later in duplicates.earlier_copies(signatures):
    if later >= begin:
      yield members[earlier][:3], members[later][:3]


def _clusters(pairs):
  """Yields (exact hash, (exact hash and id of the first of its cluster, whether it repeats one)).

  Only of documents that are in a pair.
  """
  parents = {member: member for pair in pairs for member in pair}

  def root(member):
    while parents[member] != member:
      parents[member] = member = parents[parents[member]]
    return member

  for pair in pairs:
    low, high = sorted(map(root, pair))
    parents[high] = low
  repeats = {later for _, later in pairs}
  for member in parents:
    _, exact, name = root(member)
    yield member[1], (exact, name, member in repeats)


def _judge(element, drop_duplicates, limit):
  """Yields (name of the output, verdict) of the documents of equal text.

  Args:
    element: (exact hash, {"documents": what _Clean yields, "cluster": none or one of _clusters}).
    drop_duplicates: see PrepareSettings.
    limit: of exact hashes: below it a cluster is held out.
  """
  exact, found = element
  documents = found["documents"]
  first = min(documents)[:2]
  cluster, name, is_near = next(iter(found["cluster"]), (exact, first[1][2], False))
  split = "validation" if cluster < limit else "train"
  for key, document, changed, length, _ in documents:
    rule = "exact_duplicates" if key != first[0] else "near_duplicates" if is_near else None
    if rule is None or not drop_duplicates:
      yield split, (document, None, "", changed, length)
    else:
      yield f"rejected/{rule}", (document, rule, f"duplicate of {name}", changed, length)


def _write(judged, name, path):
  _ = (judged | f"choose {name}" >> beam.Filter(lambda element, name: element[0] == name, name)
       | f"rows of {name}" >> beam.Map(_row) | f"write {name}" >> beam.io.WriteToText(
           path, file_name_suffix=".jsonl.zst", compression_type=CompressionTypes.ZSTD,
           skip_if_empty=True))


def _row(element):
  document, rule, reason, *_ = element[1]
  row = Document(*document)._asdict()
  return json.dumps(row if rule is None else {**row, "reason": reason}, ensure_ascii=False)


class _ReportFn(beam.CombineFn):
  """Adds up a Report: of (name of an output, verdict) and ("", counts of the reader)."""

  def create_accumulator(self):
    return Report()

  def add_input(self, report, element):
    name, found = element
    if not name:
      report.counts.update(found)
      return report
    document, rule, reason, changed, length = found
    reason = "duplicate" if rule in _RULES[-2:] else reason
    report.add(Verdict(Document(*document), rule, reason, changed, length))
    if rule is None:
      report.counts[f"{name} documents"] += 1
    return report

  def merge_accumulators(self, reports):
    merged = Report()
    for report in reports:
      merged.merge(report)
    return merged

  def extract_output(self, report):
    return report


def _report_json(report):
  return json.dumps(report.to_json(), indent=1, ensure_ascii=False)

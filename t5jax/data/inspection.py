"""What a task really feeds to a model: documents, examples, and figures about both."""

import base64
import collections
import dataclasses
import html
import io
import itertools
import re

import numpy as np

from t5jax.data.text_files import DataError

_LONGER = 16  # How many times the feature lengths count as no limit, to see what they cut off.


@dataclasses.dataclass
class DocumentStatistics:
  """Figures of raw documents.

  Attributes:
    lengths: tokens of each document.
    num_words: runs of characters between white space, over all documents.
    num_characters: over all documents.
    num_unknown: tokens that are the unknown id.
    unknown: Counter of the parts of text behind them.
  """

  lengths: list = dataclasses.field(default_factory=list)
  num_words: int = 0
  num_characters: int = 0
  num_unknown: int = 0
  unknown: collections.Counter = dataclasses.field(default_factory=collections.Counter)

  def add(self, text, vocabulary):
    """Counts a document."""
    ids = vocabulary.encode(text)
    self.lengths.append(len(ids))
    self.num_words += len(text.split())
    self.num_characters += len(text)
    if found := ids.count(vocabulary.unk_id):
      self.num_unknown += found
      self.unknown.update(vocabulary.unknown_parts(text))

  def lines(self):
    """Yields (name, value) as text."""
    num_tokens = sum(self.lengths)
    yield "documents", f"{len(self.lengths):,}"
    yield "tokens per document", _five_numbers(self.lengths)
    yield "fertility", f"{num_tokens / max(self.num_words, 1):.3f} tokens per word"
    yield "compression", f"{num_tokens / max(self.num_characters, 1):.3f} tokens per character"
    yield "unknown", f"{self.num_unknown / max(num_tokens, 1):.4%} of the tokens"
    if self.unknown:
      yield "most frequent unknown", "  ".join(
          f"{part!r} x{count}" for part, count in self.unknown.most_common(10))


@dataclasses.dataclass
class ExampleStatistics:
  """Figures of examples.

  Attributes:
    feature_lengths: {"inputs": int, "targets": int}, the limits.
    lengths: {"inputs": [...], "targets": [...]}, tokens of each example, EOS included.
    num_sentinels: {"inputs": int, "targets": int}, over all examples.
  """

  feature_lengths: dict
  lengths: dict = dataclasses.field(default_factory=lambda: {"inputs": [], "targets": []})
  num_sentinels: dict = dataclasses.field(default_factory=lambda: {"inputs": 0, "targets": 0})

  def add(self, inputs, targets, vocabulary):
    """Counts an example, given as ids without padding."""
    for name, ids in (("inputs", inputs), ("targets", targets)):
      self.lengths[name].append(len(ids))
      self.num_sentinels[name] += int((np.asarray(ids) >= vocabulary.num_pieces).sum())

  def lines(self):
    """Yields (name, value) as text."""
    count = len(self.lengths["inputs"])
    yield "examples", f"{count:,}"
    for name, limit in self.feature_lengths.items():
      lengths = self.lengths[name]
      used = sum(min(n, limit) for n in lengths)
      yield f"tokens per {name}", f"{_five_numbers(lengths)} of {limit}"
      yield f"padding of {name}", f"{1 - used / (limit * count):.2%}"
      yield f"truncated {name}", (f"{sum(n > limit for n in lengths) / count:.2%} of the examples, "
                                  f"{1 - used / sum(lengths):.2%} of the tokens")
    if num_spans := self.num_sentinels["targets"]:
      kept, masked = (sum(self.lengths[name]) - self.num_sentinels[name] - count
                      for name in ("inputs", "targets"))
      yield "masked", f"{masked / (masked + kept):.2%} of the tokens"
      yield "mean span", f"{masked / num_spans:.2f} tokens"


@dataclasses.dataclass
class Inspection:
  """A sample of a task's data.

  Attributes:
    title: of the task and split.
    documents: the first few raw texts.
    examples: list of (inputs, targets) as text, sentinels visible.
    document_statistics: DocumentStatistics.
    example_statistics: ExampleStatistics.
  """

  title: str
  documents: list
  examples: list
  document_statistics: DocumentStatistics
  example_statistics: ExampleStatistics

  def lines(self):
    """Yields (name, value) of all figures."""
    yield from self.document_statistics.lines()
    yield from self.example_statistics.lines()


def inspect(data, vocabulary, split="train", num_shown=3, num_documents=1000, num_examples=1000):
  """Looks at the first documents and examples of a task.

  Args:
    data: a prepared TaskData.
    vocabulary: its Vocabulary.
    split: to look at.
    num_shown: documents and examples to keep as text.
    num_documents: to count.
    num_examples: to count.

  Returns:
    Inspection.

  Raises:
    DataError: there is no such split, or nothing in it.
  """
  documents, document_statistics = [], DocumentStatistics()
  for text in itertools.islice(data.raw_texts(split), num_documents):
    document_statistics.add(text, vocabulary)
    documents += [text] if len(documents) < num_shown else []
  examples, example_statistics = [], ExampleStatistics(data.feature_lengths)
  for inputs, targets in itertools.islice(data.examples(split, _LONGER), num_examples):
    example_statistics.add(inputs, targets, vocabulary)
    if len(examples) < num_shown:
      examples.append((vocabulary.decode(inputs), vocabulary.decode(targets)))
  if not documents or not examples:
    raise DataError(f"task {data.name!r}: the {split} split is empty.")
  return Inspection(f"{data.name}, {split}", documents, examples, document_statistics,
                    example_statistics)


def write_html(inspection, path):
  """Writes a page of its own: figures, histograms, documents, examples."""
  figures = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
                    for name, value in inspection.lines())
  documents = "".join(f"<pre>{html.escape(text)}</pre>" for text in inspection.documents)
  examples = "".join(f"<h3>inputs</h3><pre>{_marked(inputs)}</pre><h3>targets</h3>"
                     f"<pre>{_marked(targets)}</pre>" for inputs, targets in inspection.examples)
  title = html.escape(inspection.title)
  with open(path, "w", encoding="utf-8") as file:
    file.write(f"""<!DOCTYPE html><html><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.45 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
th {{ text-align: left; font-weight: normal; color: #555; padding-right: 1.5em }}
pre {{ white-space: pre-wrap; background: #f4f4f4; padding: .8em; max-height: 24em;
  overflow: auto }}
mark {{ background: #ffd866 }} img {{ max-width: 100% }}
</style></head><body><h1>{title}</h1><table>{figures}</table>
<img alt="histograms" src="data:image/png;base64,{_histograms(inspection)}">
<h2>Documents</h2>{documents}<h2>Examples</h2>{examples}</body></html>
""")


def _marked(text):
  return re.sub(r"(&lt;extra_id_\d+&gt;)", r"<mark>\1</mark>", html.escape(text))


def _histograms(inspection):
  """A PNG of the lengths, in base64."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(10, 2.8), layout="constrained")
  panels = {"tokens per document": inspection.document_statistics.lengths, **{
      f"tokens per {name}": n for name, n in inspection.example_statistics.lengths.items()}}
  for axes, (name, lengths) in zip(figure.subplots(1, len(panels)), panels.items()):
    axes.hist(lengths, bins=40, color="#4878a8")
    axes.set_xlabel(name)
  image = io.BytesIO()
  figure.savefig(image, format="png", dpi=110)
  return base64.b64encode(image.getvalue()).decode()


def _five_numbers(values):
  low, median, high = np.percentile(values, [5, 50, 95])
  return (f"{np.mean(values):,.1f} (5 %: {low:,.0f}, median {median:,.0f}, 95 %: {high:,.0f}, "
          f"most {max(values):,})")

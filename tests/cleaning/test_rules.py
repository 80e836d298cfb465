"""Repairs of text and the rules on single documents, in English and Danish."""

import unicodedata

import pytest

from t5jax.cleaning import rules, words
from t5jax.cleaning.cleaner import Cleaner, CleaningSettings, Document
from t5jax.cleaning.repair import repair
from t5jax.data.vocab_training import train_vocabulary
from t5jax.settings import SettingError
from tests.data.conftest import make_documents

DANISH = ("Folketinget behandlede i går et forslag om ændring af loven. Ministeren sagde, at sagen er "
          "vigtig for hele landet. Derefter blev der stemt om forslaget, og det blev vedtaget.")
ENGLISH = ("The parliament debated a proposal to change the law yesterday. The minister said that "
           "this matter is important for the whole country. Afterwards the house took a vote on it.")
SWEDISH = ("Riksdagen behandlade i går ett förslag om ändring av lagen. Ministern sade att frågan är "
           "viktig för hela landet och att något måste göras. Därefter röstade man om förslaget.")
GERMAN = ("Das Parlament hat gestern über einen Vorschlag zur Änderung des Gesetzes beraten. Die "
          "Ministerin sagte, dass die Sache wichtig für das ganze Land ist. Danach wurde abgestimmt.")


@pytest.mark.parametrize("raw, repaired", [
    ("blåbær", "blåbær"), (unicodedata.normalize("NFD", "blåbær på Ærø"), "blåbær på Ærø"),
    ("sund\u00adheds\u00advæsen", "sundhedsvæsen"), ("nul\u200bbredde\ufeff", "nulbredde"),
    ("sam\u200cmen\u200d", "sammen"), ("می\u200cخواهم", "می\u200cخواهم"),
    ("f\x7frkastet\x00\x1b", "frkastet"), ("§\u00a01\u2009a\u202fb", "§ 1 a b"),
    ("rÃ¸dgrÃ¸d med flÃ¸de", "rødgrød med fløde"), ("a\r\nb\u2028c\x0bd\u0085e", "a\nb\nc\nd\ne"),
    ("»ja« „og“ ’nej’ – … ½ m² ﬁn", "»ja« „og“ ’nej’ – … ½ m² ﬁn"), ("  a \t b  \n\n\n\n c ", "a b\n\nc"),
    ("Aarhus og Århus", "Aarhus og Århus"), ("æøå ÆØÅ é ü", "æøå ÆØÅ é ü")])
def test_repair(raw, repaired):
  assert repair(raw) == repaired
  assert repair(repaired) == repaired


def document(text, source="s"):
  return Document(text, source, "1")


def dropped_by(settings, text, source="s"):
  verdict = Cleaner(settings)(document(text, source))
  return verdict.dropped_by, verdict.reason


def test_other_languages_are_dropped_with_their_name():
  danish = CleaningSettings(language="da")
  assert dropped_by(danish, DANISH) == (None, "")
  assert dropped_by(danish, ENGLISH) == ("language", "en")
  assert dropped_by(danish, SWEDISH) == ("language", "sv")
  assert dropped_by(danish, GERMAN) == ("language", "de")
  assert dropped_by(CleaningSettings(language="en"), ENGLISH) == (None, "")
  assert dropped_by(CleaningSettings(language="en"), DANISH) == ("language", "da")
  assert dropped_by(CleaningSettings(), SWEDISH) == (None, "")


def test_short_text_and_trusted_sources_are_not_asked_for_their_language():
  danish = CleaningSettings(language="da")
  assert dropped_by(danish, "Yes, of course.") == (None, "")
  assert dropped_by(danish, SWEDISH, source="botxt") == (None, "")
  assert dropped_by(CleaningSettings(language="da", trusted_sources=()), SWEDISH,
                    source="botxt") == ("language", "sv")


def test_thresholds_are_settings():
  assert dropped_by(CleaningSettings(language="da", language_threshold=1.0), DANISH)[0] == "language"


def web_lines(language, text, bad_words=None):
  known = words.LANGUAGES[language]
  rule = rules.WebLines(known, known.bad_words if bad_words is None else bad_words, min_sentences=1)
  try:
    return rule(document(text))
  except rules.Dropped as dropped:
    return f"dropped: {dropped}"


@pytest.mark.parametrize("end, english, danish", [
    (".", True, True), ("?", True, True), ('"', True, True), ("”", False, True), ("«", False, True),
    ("»", False, True), ("’", False, True), ("…", False, True), ("...", False, False),
    (":", False, False), ("", False, False)])
def test_end_marks(end, english, danish):
  line = f"Her er en linje med mange ord{end}"
  keep = "Denne linje bliver i alle tilfælde stående."
  for language, stays in (("en", english), ("da", danish)):
    assert web_lines(language, f"{line}\n{keep}") == (f"{line}\n{keep}" if stays else keep)


@pytest.mark.parametrize("line, stays", [
    ("Kun fire korte ord.", False), ("Siden bruger cookies til at huske dine valg.", False),
    ("Læs vores privatlivspolitik her på siden i dag.", False), ("Please enable JavaScript to see it.", False),
    ("Et langt ord: " + "a" * 1001 + " og mere.", False),
    ("Som det fremgår [12] af kilden, er det sandt.", True)])
def test_lines_of_web_pages(line, stays):
  keep = "Denne linje bliver i alle tilfælde stående."
  expected = f"{line.replace('[12]', '')}\n{keep}" if stays else keep
  assert web_lines("da", f"{line}\n{keep}") == expected


@pytest.mark.parametrize("text, reason", [
    ("Lorem ipsum dolor sit amet, og så videre.", "lorem ipsum"),
    ("Her er function() { return 1 } og mere tekst.", "{"),
    ("Han kaldte ham et røvhul foran alle de andre.", "røvhul")])
def test_pages_are_dropped_for_what_they_hold(text, reason):
  assert web_lines("da", text).startswith("dropped: ") and reason in web_lines("da", text)


def test_danish_words_are_not_bad_in_danish():
  text = "Det var tit slut med det fag, og han fik seks i sex af dem."
  assert web_lines("da", text) == text
  assert "bad word" in web_lines("da", text, words.LANGUAGES["en"].bad_words)
  assert not {"slut", "fag", "tit", "sex"} & set(words.LANGUAGES["da"].bad_words)


def test_a_list_of_another_language_warns():
  assert "another language" in CleaningSettings("da", web=True, word_list="en").warnings()[0]
  assert not CleaningSettings("da", web=True).warnings()
  assert "'fi'" in CleaningSettings("fi", web=True).warnings()[0]


@pytest.mark.parametrize("text, count", [
    ("En sætning. En til! Og en tredje?", 3), ("Uden punktum", 1), ("", 0), ("a.\nb.\n\nc.", 3),
    ("Hr. Jensen bor i nr. 4 bl.a. på Ærø. Det er kl. 9.30.", 2), ("Den 2. Maj kom de.", 1),
    ("»Ja,« sagde han. »Nej!« råbte hun. Så gik de.", 3), ("Det koster 2.299.835 kr. i alt.", 1)])
def test_sentences_are_counted_by_danish_rules(text, count):
  assert rules.count_sentences(text, words.LANGUAGES["da"].abbreviations) == count


def test_pages_need_sentences():
  settings = CleaningSettings(language="da", web=True)
  assert dropped_by(settings, DANISH) == (None, "")
  assert dropped_by(settings, DANISH.split(". ")[0] + ".") == ("web_lines",
                                                              "fewer than 3 sentences")


def test_repetition():
  rule = rules.Repetition()
  verse = "\n".join(make_documents(10))
  assert rule(document(verse)) == verse
  with pytest.raises(rules.Dropped, match="repeated lines"):
    rule(document("\n".join(["samme linje hver gang"] * 8 + ["en anden"])))
  with pytest.raises(rules.Dropped, match="'køb nu' again"):
    rule(document("køb nu " * 20 + "og aldrig mere igen"))


def test_length():
  bounds = rules.Length(3, 5)
  assert bounds(document("abcd")) == "abcd"
  for text, problem in (("ab", "fewer than 3"), ("abcdef", "more than 5")):
    with pytest.raises(rules.Dropped, match=problem):
      bounds(document(text))


def test_documents_without_text_are_dropped():
  assert dropped_by(CleaningSettings(), " \u00ad\u200b\n") == ("length", "fewer than 1 characters")


def test_tokens_per_character(tmp_path):
  path = tmp_path / "spiece.model"
  train_vocabulary(make_documents(300), path, 300)
  settings = CleaningSettings(vocab_file=str(path), max_tokens_per_character=0.7)
  assert dropped_by(settings, make_documents(1, seed=8, words=(50, 50))[0]) == (None, "")
  assert dropped_by(settings, "qxzwvjkq" * 8)[0] == "tokens_per_character"


def test_changes_are_told():
  verdict = Cleaner(CleaningSettings(language="da", web=True))(
      document(DANISH + "\nMenu\n\u00adLogin", "s"))
  assert verdict.changed_by == ("repair", "web_lines") and verdict.document.text == DANISH


@pytest.mark.parametrize("settings, problem", [
    ({"word_list": "da"}, "word_list = 'da'.*None without the rules"),
    ({"web": True, "word_list": "xx"}, "word_list = 'xx'.*en, da"),
    ({"language_threshold": 2.0}, "language_threshold = 2.0"), ({"min_characters": 0}, "min_ch")])
def test_settings_are_checked(settings, problem):
  with pytest.raises(SettingError, match=problem):
    CleaningSettings(**settings)

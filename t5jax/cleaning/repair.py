"""Repairs Unicode: broken encodings, invisible characters, composed letters, odd spaces."""

import functools
import re
import unicodedata

_SPACES = dict.fromkeys([ord("\t"), 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
_LINE_ENDS = dict.fromkeys(map(ord, "\u2028\u2029\u0085\v\f"), "\n")
# The soft hyphen marks where a word may be broken: without it the word is whole again.
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
# Joiners shape the letters of other scripts, where they stay.
_LATIN_JOINERS = re.compile("(?<=[\x00-\u02ff])[\u200c\u200d]+|[\u200c\u200d]+(?=[\x00-\u02ff])")
_TABLE = {**_SPACES, **_LINE_ENDS, **_INVISIBLE}
_ODD = re.compile(f"[{''.join(map(chr, _TABLE))}]")  # Far faster to search for than to translate.
_SPACE_RUNS = re.compile(" {2,}")
_LINE_EDGES = re.compile(" *\n *")
_MANY_LINES = re.compile("\n{3,}")


@functools.cache
def _ftfy():
  """ftfy with its repairs of encodings, and without its changes of typography.

  Quotes stay as they are (»«, „“ belong to the language), and so do ligatures, widths, fractions.
  """
  import ftfy

  return functools.partial(ftfy.fix_text, config=ftfy.TextFixerConfig(
      uncurl_quotes=False, fix_latin_ligatures=False, fix_character_width=False,
      normalization="NFC", explain=False))


def repair(text):
  """Repairs a document; it is the same text to a reader, and repairing it again changes nothing.

  Mojibake is decoded and control characters are removed by ftfy; soft hyphens, zero-width spaces
  and byte order marks are removed, so that `sund\\u00adheds` becomes `sundheds`; every kind of
  space is one plain space, every kind of line end one line feed; blank lines come one at a time;
  letters are composed (NFC: a with a ring is å).

  Args:
    text: str.

  Returns:
    str, without white space at its ends.
  """
  text = _plain(_ftfy()(_plain(text)))
  text = _SPACE_RUNS.sub(" ", _LATIN_JOINERS.sub("", text))
  text = _MANY_LINES.sub("\n\n", _LINE_EDGES.sub("\n", text))
  return unicodedata.normalize("NFC", text).strip()


def _plain(text):
  return text.translate(_TABLE) if _ODD.search(text) else text

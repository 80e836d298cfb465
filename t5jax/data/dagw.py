"""Danish Gigaword in its own layout: a folder a section, a file without suffix a document.

Beside the documents each section has metadata, a README and a licence (Strømberg-Derczynski et al.
2021, gigaword.dk).
"""

import os
import pathlib
import re

from t5jax.settings import SettingError, nearest

_NOT_DOCUMENTS = ("readme", "license", "licence")
_SPEAKER = re.compile(r"^[ \t]*taler[ \t]+\d+[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)


def find_documents(folder, sections=None):
  """Lists the files that hold documents.

  Args:
    folder: "sektioner", which holds the sections, or the folder above it.
    sections: names of those to read, such as ["ft", "ep"]; None for all.

  Returns:
    Sorted tuple of paths.

  Raises:
    SettingError: there is no such section, or no document.
  """
  root = pathlib.Path(folder).expanduser()
  root = root / "sektioner" if (root / "sektioner").is_dir() else root
  known = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
  for section in sections or ():
    if section not in known:
      raise SettingError("sections", section, f"one of {', '.join(known) or 'none'} in {root}."
                         f"{nearest(section, known)}".rstrip("."))
  found = [path for section in sections or known for path in (root / section).rglob("*")
           if path.is_file() and _is_document(path)]
  if not found:
    raise SettingError("directory", os.fspath(folder), "the folder `sektioner` of Danish Gigaword, "
                       "with a folder for each section and a file without suffix for each document")
  return tuple(sorted(map(str, found)))


def section_of(path):
  """Returns the section of a document's file: ".../sektioner/ft/ft_20091M1" is of "ft"."""
  return pathlib.Path(path).parent.name


def strip_speakers(text):
  """Takes the "TALER 57:" off the beginning of lines, which transcripts of debates have."""
  return _SPEAKER.sub("", text)


def _is_document(path):
  name = path.name.lower()
  return not (name.startswith((*_NOT_DOCUMENTS, ".")) or path.suffix.lower() in (
      ".json", ".jsonl", ".md", ".csv", ".tsv", ".zip"))

"""Putting a folder in place whole: it is written under another name and renamed when finished."""

import contextlib
import fnmatch
import pathlib
import shutil


@contextlib.contextmanager
def replacing(output_dir, owned, kept=()):
  """Yields an empty folder that takes the place of `output_dir` if the block ends without an error.

  Until then an earlier `output_dir` is as it was, and nothing unfinished bears its name.

  Args:
    output_dir: need not exist.
    owned: patterns of the names that an earlier folder may hold and that are given up with it.
    kept: names that are carried over into the new folder.

  Raises:
    ValueError: `output_dir` is a file or holds anything else.
  """
  target = pathlib.Path(output_dir).resolve()
  _check_replaceable(target, output_dir, (*owned, *kept))
  partial, old = (target.parent / f".{target.name}.{suffix}" for suffix in ("partial", "old"))
  shutil.rmtree(partial, ignore_errors=True)  # Of a run that was killed.
  partial.mkdir(parents=True)
  try:
    yield partial
    for name in kept:
      if (target / name).exists():
        shutil.copy2(target / name, partial / name)
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
      target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def _check_replaceable(target, name, allowed):
  if not target.exists():
    return
  if not target.is_dir():
    raise ValueError(f"{name} is a file: expected a new or an earlier export's folder.")
  foreign = sorted(child.name for child in target.iterdir()
                   if child.is_dir() or not any(fnmatch.fnmatch(child.name, p) for p in allowed))
  if foreign:
    raise ValueError(f"{name} holds what no export wrote: {', '.join(foreign[:5])}. Choose a new "
                     "or empty folder, or an earlier export's.")

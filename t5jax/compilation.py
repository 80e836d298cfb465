"""Where compiled programs are kept between runs."""

import hashlib
import os
import pathlib
import platform

import jax


def keep_programs():
  """Has JAX keep compiled programs in the user's cache, so that only the first run waits for them.

  They go to t5jax/ in XDG_CACHE_HOME (~/.cache), unless JAX_COMPILATION_CACHE_DIR names another
  folder; that variable set to nothing turns this off. The folder can be deleted at any time.
  """
  if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    return
  root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  # Homes are shared, CPUs differ: a program for another one may not run, and JAX does not tell them apart.
  folder = pathlib.Path(root).expanduser() / "t5jax" / f"programs-{_processor()}"
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError:
    return  # A home that cannot be written to: every run compiles.
  jax.config.update("jax_compilation_cache_dir", str(folder))


def _processor():
  """Eight letters that tell kinds of CPUs apart."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    features = next(line for line in lines if line.startswith(("flags", "Features")))
  except (OSError, StopIteration):  # Not Linux.
    features = platform.processor()
  return hashlib.blake2b(f"{platform.machine()} {features}".encode(), digest_size=4).hexdigest()

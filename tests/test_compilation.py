"""The cache of compiled programs."""

import jax
import pytest

from t5jax import compilation


@pytest.fixture
def folder(monkeypatch, tmp_path):
  """The cache folder that JAX has been told of; restored afterwards."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  before = jax.config.jax_compilation_cache_dir
  yield lambda: jax.config.jax_compilation_cache_dir
  jax.config.update("jax_compilation_cache_dir", before)


def test_programs_are_kept_in_the_users_cache(folder, monkeypatch, tmp_path):
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
  compilation.keep_programs()
  (made,) = (tmp_path / "t5jax").iterdir()
  assert folder() == str(made)


@pytest.mark.parametrize("value", ["", "elsewhere"])
def test_the_users_own_choice_stays(folder, monkeypatch, tmp_path, value):
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", value)
  before = folder()
  compilation.keep_programs()
  assert folder() == before and not list(tmp_path.iterdir())


def test_a_home_that_cannot_be_written_to(folder, monkeypatch, tmp_path):
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  before = folder()
  compilation.keep_programs()
  assert folder() == before

"""Every wrong name or value is one clear error before anything is built."""

import pathlib

import pytest

from t5jax import config

HEADER = """from __gin__ import dynamic_registration
from t5jax import schedules
from t5jax.model import config
LAYERS = 2
config.t5_1_1:
  size = "tiny"
  num_encoder_layers = %LAYERS
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
  """Returns a function: (text after the header, bindings) -> (T5Config, resolved text)."""
  monkeypatch.chdir(tmp_path)

  def call(text="", *bindings, files=("my.gin",)):
    (tmp_path / "my.gin").write_text(HEADER + text)
    return config.build("t5jax.model.config.t5_1_1", files, bindings)

  return call


def test_values_from_file_and_command_line(build):
  model, resolved = build("", "LAYERS=3", "config.t5_1_1.dtype=float32")
  assert (model.num_encoder_layers, model.dtype) == (3, "float32")
  assert "LAYERS = 3" in resolved


def test_the_resolved_configuration_builds_the_same(build, tmp_path):
  model, resolved = build("", "LAYERS=3")
  (tmp_path / "resolved.gin").write_text(resolved)
  again, resolved_again = build(files=["resolved.gin"])
  assert again == model and resolved_again == resolved


@pytest.mark.parametrize("value, expected", [
    ("runs/a", "runs/a"), ("'quoted'", "quoted"), ("~/æ ø/å b", "~/æ ø/å b"), ("None", None),
    ("3", 3), ("1e-3", 1e-3), ("[1, 2]", [1, 2]), ("abc", "abc"), ("data/*.jsonl", "data/*.jsonl"),
    ("gs://bucket/x", "gs://bucket/x"), ("2024-01-01", "2024-01-01")])
def test_strings_need_no_quotes(value, expected):
  import gin
  gin.clear_config()
  gin.parse_config(config._quoted(f"NAME={value}"))
  assert gin.query_parameter("NAME/gin.macro.value") == expected
  gin.clear_config()


@pytest.mark.parametrize("text, bindings, message", [
    ("", ["LAYRES=3"], "LAYRES is set, but nothing uses it. Did you mean 'LAYERS'?"),
    ("config.t5_1_1.num_heads = %HEADS", [], "HEADS is needed, but not set"),
    ("config.t5_1_1.num_head = 3", [], "num_head.*Did you mean 'num_heads'"),
    ("", ["LAYERS=two"], "num_encoder_layers = 'two'.*int >= 1.*LAYERS"),
    ("", ["LAYERS=0"], "num_encoder_layers = 0.*int >= 1.*LAYERS"),
    ("config.t5_1_1.dropout_rate = 1.5", [], "dropout_rate = 1.5.*< 1"),
    ('config.t5_1_1.size = "bsae"', [], "bsae.*base"),
    ("schedules.cosine.total_steps = 5", [], "schedules.cosine.*no effect"),
    ("schedules.cosine.total_step = 5", [], "total_step.*Did you mean 'total_steps'"),
    ("schedules.cosin.total_steps = 5", [], "cosin.*Did you mean.*cosine"),
    ("", ["LAYERS=@config.t5_1_2()"], "config.t5_1_2 is named.*Did you mean.*config.t5_1_1"),
    ("config.t5_1_1.size =", [], "my.gin"),
    ("include 'nosuch.gin'", [], "nosuch.gin"),
    ("", ["LAYERS"], "--gin.NAME=value")])
def test_wrong_settings(build, text, bindings, message):
  with pytest.raises(config.ConfigError, match=f"(?s){message}"):
    build(text, *bindings)


def test_missing_file_names_the_folders_and_the_nearest_name(build, tmp_path):
  with pytest.raises(config.ConfigError, match=r"dmo\.gin.*Did you mean 'demo\.gin'") as error:
    build(files=["dmo.gin"])
  assert str(tmp_path) in str(error.value)


def test_a_folder_of_an_earlier_call_is_not_searched(build, tmp_path, monkeypatch):
  (tmp_path / "part.gin").write_text("LAYERS = 3\n")
  assert build("include 'part.gin'")[0].num_encoder_layers == 3
  (tmp_path / "other").mkdir()
  monkeypatch.chdir(tmp_path / "other")
  with pytest.raises(config.ConfigError, match="part.gin"):
    build("include 'part.gin'", files=["../my.gin"])


def test_differences_names_what_changed():
  old = "a.B.x = 1\na.B.y = \\\n    'long'\nTRAIN_STEPS = 5\nc.D.z = [1,\n         2]\n"
  new = "a.B.x = 2\na.B.y = 'long'\nTRAIN_STEPS = 6\nc.D.z = [1,\n         2]\n"
  assert config.differences(old, new, [r"TRAIN_STEPS$"]) == {"a.B.x": ("1", "2")}


def test_the_gin_folder_holds_no_python():
  root = pathlib.Path(config.search_path()[1])
  assert list(root.rglob("*.gin")) and not list(root.rglob("*.py"))

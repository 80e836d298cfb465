"""The benchmark of the train step: figures are right, the peer does the same work, it runs."""

import json

import numpy as np
import pytest

from t5jax.tools import benchmark, step_contestants
from tests import tiny

LENGTHS = {"inputs": tiny.INPUT_LENGTH, "targets": tiny.TARGET_LENGTH}


class Fixed:
  """A contestant that always answers the same."""

  def __init__(self, name, windows, **answers):
    self.name, self.windows, self.prepared, self.answers = name, windows, 1.5, answers

  def call(self, method):
    return self.answers[method]


def test_figures_and_ratio():
  ours = Fixed("t5jax", [0.5, 0.4, 0.6], peak_bytes=2e9, peak_flops=4e3, num_devices=2, input_wait=0.3,
               compile_seconds=1.2, program=dict(matmul_flops=60, temporary_bytes=5))
  slow, fast = Fixed("slow", [9.0, 9.0, 9.0]), Fixed("fast", [0.55, 0.5, 0.6])
  row = benchmark.figures(ours, work=100, matmul_flops=1e3, tokens=50, is_ours=True, num_steps=3)
  assert row["seconds_per_step"] == 0.5 and row["tokens_per_second"] == 100
  assert row["matmul_share"] == pytest.approx(0.2) and row["mfu"] == pytest.approx(0.05)
  assert row["useful_flops"] == pytest.approx(100 / 120) and row["input_wait_seconds"] == pytest.approx(0.1)
  assert ("| t5jax | 0.5 (0.4 to 0.6) | 100 | 20.0% | 5.0% | 83.3% | 1.2 | 1.5 | 2.00 | 0.1 |"
          in benchmark.table([row]))
  assert benchmark.ratio(ours, [slow, fast]) == (
      "tokens/s of t5jax over fast: 1.100 (1.000 to 1.250 over 3 turns)")


@pytest.mark.parametrize("version", ["t5_1_0", "t5_1_1"])
def test_the_peer_has_as_many_parameters_and_learns(version):
  pytest.importorskip("transformers")
  from t5jax import memory

  model = tiny.model(version)
  peer = step_contestants.Transformers(model, 4, LENGTHS, compile=False)
  peer.prepare()
  assert sum(p.numel() for p in peer._parameters) == memory.num_parameters(model)
  loss = lambda: float(peer._network(**peer._batch).loss.detach())
  before = loss()
  peer.steps(3)
  assert loss() < before


def test_wrong_flags_are_named():
  for flags, message in ((["--windows=0"], "benchmark.windows = 0"),
                         (["--peer_modes", "eager"], "--peer_modes = .*--against=transformers"),
                         (["--output=/no/such/file"], "--output = '/no/such/file'.*can be written")):
    with pytest.raises(ValueError, match=message):
      benchmark.main(["--gin_file=demo.gin", *flags])


@pytest.mark.slow
def test_what_the_devices_cannot_do_is_one_line():
  with pytest.raises(ValueError, match="TaskData.batch_size = 2 is not valid: expected a multiple of 8"):
    benchmark.main(["--gin_file=demo.gin", "--gin.MODEL_SIZE=tiny", "--gin.BATCH_SIZE=2"])


@pytest.mark.slow
def test_the_command_line(tmp_path, capsys):
  pytest.importorskip("transformers")
  output = tmp_path / "figures.jsonl"
  benchmark.main([
      "--gin_file=demo.gin", "--gin.MODEL_SIZE=tiny", "--gin.BATCH_SIZE=8", f"--output={output}",
      "--gin.TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 9}", "--steps=1", "--windows=2",
      "--against=transformers", "--peer_modes", "eager"])
  ours, peer = map(json.loads, output.read_text().splitlines())
  assert 0.5 < ours["useful_flops"] <= 1 and np.isfinite(peer["tokens_per_second"])
  assert "tokens/s of t5jax over transformers, eager: " in capsys.readouterr().out

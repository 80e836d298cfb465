"""The benchmark of input pipelines: the peer makes true examples, figures are right, it runs."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from t5jax.settings import SettingError
from t5jax.tasks.demo import demo_corpus
from t5jax.tools import bench_data, bench_peers, process_usage

FIRST_SENTINEL, EOS = 1099, 1
needs_proc = pytest.mark.skipif(not process_usage.available(), reason="needs Linux's /proc")


def merged(inputs, labels):
  """Puts the spans of the labels back where the inputs have their sentinels."""
  spans = np.split(labels[:-1], np.flatnonzero(labels[:-1] > FIRST_SENTINEL - 100))[1:]
  spans = {span[0]: span[1:] for span in spans}
  return np.concatenate([spans.get(token, [token]) for token in inputs[:-1]])


def test_the_peers_examples_hold_the_text():
  pytest.importorskip("torch")
  rows = np.random.default_rng(0).integers(3, FIRST_SENTINEL - 99, size=(6, 568))
  batch = bench_peers.SpanCollator(FIRST_SENTINEL, EOS)([{"input_ids": row} for row in rows])
  inputs, labels = (batch[name].numpy() for name in ("input_ids", "labels"))
  assert inputs.shape == (6, 512) and labels.shape == (6, 114)
  assert (inputs[:, -1] == EOS).all() and (labels[:, -1] == EOS).all()
  assert (labels[:, 0] == FIRST_SENTINEL).all() and (inputs[:, 0] <= FIRST_SENTINEL - 100).all()
  for i, row in enumerate(rows):
    np.testing.assert_array_equal(merged(inputs[i], labels[i]), row)
  assert len({tuple(np.flatnonzero(row > FIRST_SENTINEL - 100)) for row in inputs}) == 6


def test_documents_are_dealt_out_evenly(tmp_path):
  documents = (f"{i} " + "ø" * 5_000 for i in range(1000))
  paths, count, num_bytes = bench_data.write_text(documents, tmp_path, 120_000)
  assert count == 12 and num_bytes == sum(len(f"{i} ") + 10_000 for i in range(12))
  assert [sum(1 for _ in open(path, encoding="utf-8")) for path in paths] == [3] * 4


def test_too_little_text_is_refused(tmp_path):
  with pytest.raises(ValueError, match="3 bytes; at least 100,000"):
    bench_data.write_text(["abc"], tmp_path, 1e6)


@pytest.mark.parametrize("flags, names", [
    (["--files=x.txt"], "--vocab_file"), (["--steps=0"], "steps"),
    (["--memory_steps=-1"], "memory_steps")])
def test_wrong_flags(flags, names):
  with pytest.raises(SettingError, match=names):
    bench_data.parse_arguments(["--pipelines", "online", *flags])


def test_a_missing_package_says_what_to_install(monkeypatch):
  monkeypatch.setattr(bench_peers, "PACKAGES", ("os", "no_such_package"))
  with pytest.raises(SettingError, match=r"no_such_package cannot.* pip install '\.\[bench\]'"):
    bench_data.parse_arguments([])
  bench_data.parse_arguments(["--pipelines", "online", "cached"])


def figures(examples, memory=(100, 110)):
  return bench_data.Figures(first_batch=1.0, examples=examples, all_examples=1.0, cpu=0.5,
                            others=0.25, memory=dict(zip((1, 6), (x * 10**6 for x in memory))))


def test_ratios_by_hand():
  found = {"online": [figures(900), figures(300), figures(500)],
           "nanot5": [figures(100), figures(150), figures(50)]}
  assert list(bench_data.ratio_lines(found)) == [
      "online / nanot5: 5.00x, slowest run against its fastest 2.00x"]
  assert not list(bench_data.ratio_lines({"online": [figures(1)]}))


def test_the_line_of_a_pipeline_by_hand():
  runs = [figures(20, (100, 101)), figures(10, (100, 150)), figures(30, (200, 220))]
  line = bench_data.throughput_line("online", runs)
  assert line.startswith("online: 10 / 20 / 30 examples/s, 5,680 / 11,360 / 17,040 tokens/s, 0.500")
  assert line.endswith("200 MB at step 1, 220 MB at step 6, +10.0%, at most +50.0%; "
                       "others on 0.25 / 0.25 / 0.25 cores")


@needs_proc
def test_usage_counts_child_processes():
  code = ("import time; held = bytearray(b'x') * (64 << 20)\n"
          "while time.process_time() < 0.5: pass\nprint('ready', flush=True); input()")
  memory, machine = process_usage.resident_bytes(), process_usage.machine_cpu_seconds()
  cpu = process_usage.cpu_seconds()
  with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, text=True) as child:
    assert child.stdout.readline() == "ready\n"
    assert process_usage.resident_bytes() - memory > 60 << 20
    used = process_usage.cpu_seconds() - cpu
    assert 0.45 < used <= process_usage.machine_cpu_seconds() - machine + 0.05  # In hundredths.
    child.stdin.close()


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  vocab_file = demo_corpus(vocab_size=500).vocabulary_file(tmp_path_factory.mktemp("vocabulary"))
  return [f"--vocab_file={vocab_file}", "--megabytes=0.4", "--batch_size=4", "--steps=6",
          "--warmup=1", "--repeats=1", "--memory_steps=0", "--peer_shuffle_buffer=8", "--pipelines"]


def check_output(output, pipelines):
  assert re.match(r"0\.4 MB of text in [\d,]+ documents and 4 files, 500 pieces", output)
  for pipeline in pipelines:
    line, = re.findall(rf"^{pipeline}: (.*)$", output, re.MULTILINE)
    assert float(re.match(r"([\d,.]+) / ", line)[1].replace(",", "")) > 0
    assert re.search(r"\d MB at step 1, [\d,]+ MB at step 6, [+-]\d", line)


@needs_proc
def test_our_pipelines_run(flags, capsys, monkeypatch):
  # Where processes of their own would only load TensorFlow once more.
  monkeypatch.setattr(bench_data, "_in_own_process", lambda function, *x: function(*x))
  bench_data.main([*flags, "online", "cached"])
  output = capsys.readouterr().out
  check_output(output, ["online", "cached"])
  assert re.search(r"^building the cache: [\d,]{6,} tokens in ", output, re.MULTILINE)


@pytest.mark.slow
@needs_proc
def test_the_peer_runs_from_the_command_line(flags):
  for package in bench_peers.PACKAGES:
    pytest.importorskip(package)
  script = os.path.join(os.path.dirname(__file__), "..", "tools", "bench_data.py")
  done = subprocess.run([sys.executable, script, *flags, "nanot5"], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  check_output(done.stdout, ["nanot5"])

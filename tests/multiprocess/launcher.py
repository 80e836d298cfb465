"""Starts the processes of a run on this machine, and waits for all of them."""

import dataclasses
import os
import pathlib
import socket
import subprocess
import sys
import time

from tests.entry.conftest import xla_flags

ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass
class Ended:
  """How a process ended: its exit status, all it wrote, and seconds since the start."""

  status: int
  output: str
  seconds: float


def free_port():
  """Returns a port that nobody listens on."""
  with socket.socket() as server:
    server.bind(("localhost", 0))
    return server.getsockname()[1]


def launch(count, command, cwd, num_devices=4, timeout=600, together=True):
  """Runs `python *command` in `count` processes at a time; returns their Ended.

  With `together`, each is told by flags which of how many it is. They have `num_devices` each.
  """
  environment = {**os.environ, "XLA_FLAGS": xla_flags(num_devices), "PYTHONPATH": str(ROOT)}
  port, began = free_port(), time.monotonic()
  processes, outputs = [], []
  for i in range(count):
    mine = [f"--coordinator_address=localhost:{port}", f"--num_processes={count}",
            f"--process_id={i}"] if together else []
    outputs.append((cwd / f"output-{i}").open("w+"))
    processes.append(subprocess.Popen([sys.executable, *command, *mine], cwd=cwd, env=environment,
                                      stdout=outputs[i], stderr=subprocess.STDOUT))
  ended = {}
  try:
    while len(ended) < count:
      now = time.monotonic() - began
      assert now < timeout, "\n".join((cwd / f"output-{i}").read_text()[-3000:] for i in range(count))
      for i, process in enumerate(processes):
        if i not in ended and process.poll() is not None:
          ended[i] = Ended(process.returncode, (cwd / f"output-{i}").read_text(), now)
      time.sleep(0.1)
  finally:
    for process, output in zip(processes, outputs):
      process.kill()
      output.close()
  return [ended[i] for i in range(count)]

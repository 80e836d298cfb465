"""What two processes tell each other without a model: run by test_talk.py, a process each.

The arguments are a scenario and the flags of t5jax.train.
"""

import argparse
import os
import pathlib
import signal
import sys
import types

import jax
import numpy as np

from t5jax import distributed, rundir, sharding
from t5jax.budget import Spent
from t5jax.run import Run, StopSignal


def agree():
  """Shared values; errors of one that all raise; the clock, tokens and signals of a Run."""
  me = jax.process_index()
  for i in range(20):
    assert distributed.share([i, me]) == [[i, 0], [i, 1]]
  assert distributed.first_then_others(lambda: pathlib.Path("made").touch() or "done") == "done"

  def fails_in(process):
    if me == process:
      raise ValueError(f"no file in {process}")
  for process in (0, 1):
    for way in (distributed.together, distributed.first_then_others):
      try:
        way(lambda: fails_in(process))
      except ValueError as error:
        assert str(error) == f"no file in {process}"
      else:
        raise AssertionError("not raised")
  spend(me)
  place(me)


def spend(me):
  """Process 1 is told to stop after step 3; both learn of it then."""
  trainer = types.SimpleNamespace(data=types.SimpleNamespace(batch_size=8))
  run = Run(trainer, *[None] * 9, shard=4 * me)
  batch = dict(encoder_input_tokens=np.ones((4, 10 + me)), decoder_loss_weights=np.ones((4, 1)))
  with StopSignal() as stop:
    for step in range(1, 5):
      if me and step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
      run.spend(batch, Spent(), {}, stop.received)
      assert run.spent.tokens == step * 4 * (11 + 12) and run.spent.examples == 8 * step
      assert (run.signal == signal.SIGTERM) == (step >= 3)
  assert len({tuple(x) for x in distributed.share([run.spent.tokens, run.spent.seconds])}) == 1


def place(me):
  """Batches and the model directory, each for both."""
  rows = np.arange(8)[:, None]
  for config in (sharding.MeshConfig(), sharding.MeshConfig(tensor=4), sharding.MeshConfig(tensor=8),
                 sharding.MeshConfig(slices=2, fsdp=2)):
    mesh = config.make()
    shards, count = sharding.local_shards(mesh)
    mine = rows.reshape(count, -1)[shards].reshape(-1, 1)
    for batch in (sharding.put_batch({"x": mine}, mesh), sharding.put_whole_batch({"x": rows}, mesh)):
      np.testing.assert_array_equal(sharding.to_host(batch, mesh)["x"], rows)
  for text in ("a = 1\n", "a = 2\n"):
    with rundir.claim("run", text):
      assert pathlib.Path("run/config.gin").read_text() == text
      distributed.share(None)
  try:
    with rundir.claim("run", f"a = {me}\n"):
      raise AssertionError("not raised")
  except ValueError as error:
    assert "a: 0 in process 0, 1 in process 1" in str(error)


def fail():
  """Process 1 fails; process 0 waits for it."""
  if jax.process_index():
    raise ValueError("the disk of process 1")
  distributed.share(None)


def main():
  """Runs a scenario as t5jax.train runs a training."""
  parser = argparse.ArgumentParser()
  parser.add_argument("scenario")
  parser.add_argument("--coordinator_address")
  parser.add_argument("--num_processes", type=int)
  parser.add_argument("--process_id", type=int)
  options = parser.parse_args()
  distributed.start("auto", options.coordinator_address, options.num_processes, options.process_id,
                    initialization_timeout=30, heartbeat_timeout=10)
  status = 1
  try:
    with distributed.failing_together():
      globals()[options.scenario]()
    status = 0
  except ValueError as error:
    print(f"error: {error}", file=sys.stderr)
  finally:
    distributed.finish(status)
  print("left in peace")
  return status


if __name__ == "__main__":
  sys.exit(main())

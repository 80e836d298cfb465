"""A run in progress: what the loop changes and the hooks look at."""

import contextlib
import dataclasses
import pathlib
import signal
import sys
import time
from typing import Any

import numpy as np
from tqdm import tqdm

from t5jax import distributed, metrics
from t5jax.budget import Spent


@dataclasses.dataclass
class Run:
  """The changing half of training; the Trainer is the fixed one.

  Attributes:
    trainer: the parts.
    path: the model directory.
    model: the T5Config with its vocabulary size filled in.
    vocabulary: data.vocabulary.Vocabulary.
    mesh: jax.sharding.Mesh.
    state: TrainState.
    data: the training iterator, at the position after the last batch.
    eval_batches: held-out batches, host arrays.
    record: rundir.Record.
    checkpoints: checkpoint.Checkpoints.
    spent: budget.Spent.
    status: "running", "done" (the budget is spent) or "stopped" (from outside).
    learning_rate: of the last step.
    window: {name: [sum, weight]} of the metrics since the last log, on the host.
    signal: the signal that stopped the run, in whichever process, or None.
    logged: {name: mean} of the newest record.
    evaluation: {"step", "loss", "accuracy"} of the newest evaluation, or None.
    before: budget.Spent by earlier processes of this run.
    shard: the first part of each batch that this process holds; see sharding.local_shards.
    began: time.monotonic() when this object was made, just before the first step.
  """

  trainer: Any
  path: pathlib.Path
  model: Any
  vocabulary: Any
  mesh: Any
  state: Any
  data: Any
  eval_batches: list
  record: Any
  checkpoints: Any
  spent: Spent = Spent()
  status: str = "running"
  learning_rate: float = 0.0
  window: dict = dataclasses.field(default_factory=dict)
  signal: int | None = None
  logged: dict = dataclasses.field(default_factory=dict)
  evaluation: dict | None = None
  before: Spent = Spent()
  shard: int = 0
  began: float = dataclasses.field(default_factory=time.monotonic)
  _pending: list = dataclasses.field(default_factory=list)

  def __enter__(self):
    return self

  def __exit__(self, exception_type, exception, traceback):
    self.record.close()
    self.checkpoints.close()

  def spend(self, batch, extra, step_metrics, signal=None):
    """Counts one step, and learns of signals. Metrics stay on the device until somebody asks for them.

    Args:
      batch: this process's part of it.
      extra: Spent besides; its tokens, too, are those of this process's part.
      step_metrics: {name: (sum, weight)} on the device.
      signal: the signal that this process has received, or None.
    """
    seconds = self.before.seconds + time.monotonic() - self.began - self.spent.seconds
    own = extra + self.cost_of(batch) + Spent(steps=1, seconds=seconds)
    # All processes must spend the same, or their learning rates and ends differ: the tokens of all,
    # and the clock of the first. Parts of a batch that several of them hold count once.
    everyone = distributed.share([self.shard, own.tokens, own.seconds, signal])
    tokens = {shard: tokens for shard, tokens, _, _ in everyone}
    self.spent += dataclasses.replace(own, tokens=sum(tokens.values()), seconds=everyone[0][2])
    self.signal = next((number for *_, number in everyone if number), None)
    self._pending.append(step_metrics)

  def cost_of(self, batch):
    """Returns the Spent of a pass through our part of a batch: its real tokens, and all examples."""
    tokens = np.count_nonzero(batch["encoder_input_tokens"]) + batch["decoder_loss_weights"].sum()
    return Spent(tokens=int(tokens), examples=self.trainer.data.batch_size)

  def fold_metrics(self):
    """Waits for the device and returns the window's totals, {name: [sum, weight]}."""
    new = metrics.total_on_host(self._pending)
    self._pending.clear()
    old = self.window or {name: [0.0, 0.0] for name in new}
    self.window = {name: [a + b for a, b in zip(old[name], new[name])] for name in new} or old
    return self.window

  def host_state(self):
    """What a checkpoint keeps of this object, as JSON values."""
    return dict(spent=dataclasses.asdict(self.spent), window=self.fold_metrics())

  def restore_host_state(self, saved):
    """The inverse of `host_state`."""
    self.spent = self.before = Spent(**saved["spent"])
    self.window = saved["window"]

  @staticmethod
  def say(text):
    """Prints a line without breaking the progress bar; in the first process alone."""
    if not distributed.is_first():
      return
    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()


class StopSignal(contextlib.AbstractContextManager):
  """Truthy once SIGTERM or SIGINT has come: the loop then saves and leaves. A second one kills."""

  def __init__(self):
    self.received = None
    self._previous = {}

  def __bool__(self):
    return self.received is not None

  def __enter__(self):
    for number in (signal.SIGTERM, signal.SIGINT):
      self._previous[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *exception):
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def _handle(self, number, frame):
    del frame
    self.received = signal.Signals(number)
    signal.signal(number, self._previous[number])
    Run.say(f"{self.received.name}: saving and leaving after this step.")

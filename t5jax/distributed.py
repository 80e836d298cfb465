"""Runs of several processes: how they find each other, decide together and end together.

What they tell each other goes through the coordination service of jax.distributed, from host to host:
no device is waited for. A run of one process talks to nobody, and every function returns at once.
"""

import collections
import contextlib
import json
import os
import sys
import threading
import time
import traceback

import jax
from jax._src import distributed as jax_distributed
from jax._src.clusters import ClusterEnv

from t5jax.settings import SettingError

INITIALIZATION_TIMEOUT = 300
HEARTBEAT_TIMEOUT = 100
_AUTOMATIC = ("slurm", "tpu", "gcetpu", "gketpu")  # Where nothing needs to be said; JAX's names.
_ANSWER_MS = 7 * 24 * 3600 * 1000  # Whoever is late is waited for; whoever is dead, the watch finds.
_GRACE_SECONDS = 5  # After one process failed, for the others to fail of the same.
_RESTART = ("Give the same command again on all hosts: the run goes on from its newest checkpoint.")

_watch = None  # The _Watch of this process, from `start` to `finish`.
_rounds = 0  # Calls of `share` so far: the same in all processes.


def start(mode="auto", coordinator_address=None, num_processes=None, process_id=None,
          initialization_timeout=INITIALIZATION_TIMEOUT, heartbeat_timeout=HEARTBEAT_TIMEOUT):
  """Joins this process to the others of its run, if there are any. Before JAX is used at all.

  Args:
    mode: "auto" joins on TPU pods and under Slurm, and wherever an address is given; "on" wherever
      JAX can find out the rest; "off" never.
    coordinator_address: "host:port" of process 0.
    num_processes: of the run.
    process_id: of this one, from 0.
    initialization_timeout: seconds until all must have come.
    heartbeat_timeout: seconds without a sign of life after which a process counts as dead.

  Raises:
    SettingError: the numbers do not fit.
  """
  given = dict(coordinator_address=coordinator_address, num_processes=num_processes,
               process_id=process_id)
  _check(mode, given, initialization_timeout, heartbeat_timeout)
  is_told = any(value is not None for value in given.values())
  if mode == "off" or num_processes == 1 or not (is_told or mode == "on" or _is_cluster()):
    return
  # Else JAX takes SIGTERM, and the loop, which saves, does not hear of it.
  jax.config.update("jax_enable_preemption_service", False)
  with _deadline(initialization_timeout, _nobody_came(given, initialization_timeout)):
    try:
      # JAX's own time-outs abort without a word of advice: they come after ours.
      jax.distributed.initialize(**given, initialization_timeout=2 * initialization_timeout + 60,
                                 heartbeat_timeout_seconds=2 * heartbeat_timeout + 60)
    except (ValueError, RuntimeError) as error:
      raise ValueError(f"The processes of this run did not find each other: {error} Where JAX knows no "
                       "cluster, --coordinator_address, --num_processes and --process_id say it.") from error
  _check_processes(num_processes)
  if jax.process_count() > 1:
    global _watch
    _watch = _Watch(heartbeat_timeout)
    _watch.start()


def is_first():
  """True in the one process that writes files and speaks."""
  return _watch is None or _watch.process == 0


def share(value):
  """Returns [value of process 0, of process 1, ...]; all processes must call it, in the same order.

  `value` is what JSON holds. With one process: [value].
  """
  global _rounds
  if _watch is None:
    return [value]
  _rounds += 1
  key, client = f"t5jax/share/{_rounds}", _watch.client
  if _watch.process:
    client.key_value_set(f"{key}/{_watch.process}", json.dumps(value))
    return json.loads(client.blocking_key_value_get(f"{key}/all", _ANSWER_MS))
  values = [value] + [json.loads(client.blocking_key_value_get(f"{key}/{i}", _ANSWER_MS))
                      for i in range(1, _watch.count)]
  # Who has answered has read the last round.
  client.key_value_delete(f"t5jax/share/{_rounds - 1}/")
  client.key_value_set(f"{key}/all", json.dumps(values))
  return values


def together(function):
  """Calls `function` in all processes and returns its result. A ValueError of one is raised in all."""
  return _in_turns(function, [lambda: True])


def first_then_others(function):
  """Like `together`, but process 0 goes first: for what is made once, on a common file system."""
  return _in_turns(function, [is_first, lambda: not is_first()] if _watch else [is_first])


def _in_turns(function, turns):
  result = None
  for is_our_turn in turns:
    own = None
    try:
      if is_our_turn():
        result = function()
    except ValueError as error:
      own = error
    errors = [error for error in share(own and str(own)) if error]
    if errors:
      raise own or ValueError(errors[0])
  return result


@contextlib.contextmanager
def failing_together():
  """Within it, an exception in this process ends the others as well, with its message.

  Raises:
    ValueError: instead of JAX's error, where devices of several processes did not work together.
  """
  try:
    yield
  except BaseException as error:
    if _watch is None:
      raise
    _watch.tell_failure(f"{type(error).__name__}: {error}")
    if not isinstance(error, jax.errors.JaxRuntimeError) or "RESOURCE_EXHAUSTED" in str(error):
      raise
    raise ValueError(
        f"The devices of all processes failed to work together ({str(error).splitlines()[0]}). If "
        f"another process has ended, its output or its machine tells why. {_RESTART}") from error


def finish(status=0):
  """Leaves the run: waits for the others if all went well, else ends this process with `status`."""
  global _watch
  if _watch is None:
    return
  if status and _watch.has_failed:
    _watch.leave(status)
  share(None)
  _watch.stop()
  _watch = None
  jax.distributed.shutdown()


class _Watch(threading.Thread):
  """Gives signs of life, and ends this process with a message when another gives none.

  JAX watches as well, but ends the process with a stack trace, or waits for a collective for ever.
  """

  def __init__(self, timeout):
    super().__init__(daemon=True, name="watch")
    self.client = jax_distributed.global_state.client
    self.process, self.count = jax.process_index(), jax.process_count()
    self.has_failed = False
    self._timeout, self._period = timeout, min(5, timeout / 5)
    self._stopped = threading.Event()
    self._seen = {i: (None, time.monotonic()) for i in range(self.count)}

  def run(self):
    beat = 0
    while not self._stopped.wait(self._period):
      beat += 1
      try:
        self._set(f"alive/{self.process}", str(beat))
        signs, failures = self._all("alive"), self._all("failed")
      except jax.errors.JaxRuntimeError:
        if self._stopped.is_set():
          return
        _end(f"process 0 cannot be reached any more. {_RESTART}")
      if failures and not self.has_failed:
        self._follow(*next(iter(failures.items())))
      self._look_for_the_dead(signs)

  def stop(self):
    """Ends the thread."""
    self._stopped.set()
    self.join()

  def tell_failure(self, message):
    """Lets the others know that this process is about to end."""
    self.has_failed = True
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # Process 0, which kept the notes, is gone.
      self._set(f"failed/{self.process}", message)

  def leave(self, status):
    """Ends this process; process 0, on which the others' messages depend, as the last."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._set(f"left/{self.process}", "")
      until = time.monotonic() + 2 * self._period + _GRACE_SECONDS
      while not self.process and len(self._all("left")) < self.count and time.monotonic() < until:
        time.sleep(0.2)
    if sys.exc_info()[0]:
      traceback.print_exc()
    _exit(status)

  def _set(self, key, value):
    self.client.key_value_set(f"t5jax/{key}", value, allow_overwrite=True)

  def _all(self, folder):
    return {int(key.rpartition("/")[2]): value
            for key, value in self.client.key_value_dir_get(f"t5jax/{folder}/")}

  def _follow(self, process, message):
    """Ends this process because of another's failure, unless it fails of itself, as all may do."""
    time.sleep(_GRACE_SECONDS)
    if not self.has_failed and not self._stopped.is_set():
      self._set(f"left/{self.process}", "")
      _end(f"process {process} has failed, and so all end: {message}")

  def _look_for_the_dead(self, signs):
    now = time.monotonic()
    for process, (sign, since) in self._seen.items():
      if signs.get(process) != sign:
        self._seen[process] = signs.get(process), now
      elif now - since > self._timeout and process not in self._all("left"):
        _end(f"process {process} of {self.count} has given no sign of life for {self._timeout:.0f} "
             f"seconds, and so this one ends: its output or its machine may tell why. {_RESTART}")


def _end(message):
  prefix = "" if _watch is None else f" in process {_watch.process}"
  print(f"error{prefix}: {message}", file=sys.stderr, flush=True)
  _exit(1)


def _exit(status):
  # At once: a regular end would wait for collectives, and processes, that never come.
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


@contextlib.contextmanager
def _deadline(seconds, message):
  timer = threading.Timer(seconds, _end, [message])
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


def _nobody_came(given, seconds):
  where = given["coordinator_address"] or "the coordinator that the cluster names"
  count = f"all {given['num_processes']} processes" if given["num_processes"] else "all processes"
  return (f"{count} should have met at {where} within {seconds} seconds. The same command must be "
          "given on every host at about the same time (on Slurm by srun, on a TPU slice with "
          "--worker=all), where --process_id is given with another one on each; all must know the "
          "name and reach the port. --distributed=off trains on this host alone.")


def _check(mode, given, *seconds):
  num_processes, process_id = given["num_processes"], given["process_id"]
  if num_processes is not None and num_processes < 1:
    raise SettingError("--num_processes", num_processes, "an int >= 1")
  if process_id is not None and not 0 <= process_id < (num_processes or process_id + 1):
    raise SettingError("--process_id", process_id, f"an int from 0 to {(num_processes or 1) - 1}")
  if mode == "off" and any(value is not None for value in given.values()):
    raise SettingError("--distributed", mode, "auto or on, where other processes are named")
  address = given["coordinator_address"]
  port = (address or ":1").rpartition(":")[2]
  if not (port.isdigit() and 0 < int(port) < 2 ** 16):
    raise SettingError("--coordinator_address", address, "HOST:PORT of process 0")
  missing = [f"--{name}" for name, value in given.items() if value is None]
  if 0 < len(missing) < len(given) and mode == "auto" and num_processes != 1 and not _is_cluster():
    raise SettingError(missing[0], None, "a value, where the other two flags of the three are given")
  for name, value in zip(("--initialization_timeout", "--heartbeat_timeout_seconds"), seconds):
    if value < 1:
      raise SettingError(name, value, "an int >= 1")


def _check_processes(num_processes):
  """Refuses what the devices of all processes show to be wrong."""
  if num_processes not in (None, jax.process_count()):
    raise SettingError("--num_processes", num_processes, f"{jax.process_count()}, as in process 0")
  counts = collections.Counter(device.process_index for device in jax.devices())
  if len(set(counts.values())) > 1:
    listed = ", ".join(f"{count} in process {process}" for process, count in sorted(counts.items()))
    raise ValueError(f"Every process needs the same number of devices; there are {listed}.")


def _is_cluster(environ=os.environ):
  """True on a TPU slice of several hosts, and in a step of several tasks under Slurm."""
  for cluster in ClusterEnv._cluster_types:
    if cluster.name in _AUTOMATIC and cluster.is_env_present():
      # A batch script that does not use srun, or one task of an allocation of many, is alone.
      step = environ.get("SLURM_STEP_NUM_TASKS") if cluster.name == "slurm" else None
      return int(step or cluster.get_process_count()) > 1
  return False

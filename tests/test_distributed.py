"""Who is asked to join whom; one process asks nobody."""

import types

import jax
import pytest

from t5jax import distributed
from t5jax.settings import SettingError

SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "gpu[3-4]", "SLURM_NTASKS": "2",
         "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2"}


@pytest.fixture
def calls(monkeypatch):
  """The arguments with which jax.distributed.initialize is called; it does nothing."""
  made = []
  monkeypatch.setattr(jax.distributed, "initialize", lambda **arguments: made.append(arguments))
  for name in SLURM:
    monkeypatch.delenv(name, raising=False)
  yield made
  jax.config.update("jax_enable_preemption_service", True)


def test_a_single_host_contacts_nobody(calls):
  distributed.start()
  distributed.start("off")
  distributed.start(num_processes=1)
  assert not calls and distributed.is_first()
  assert distributed.share({"a": 1}) == [{"a": 1}]
  assert distributed.first_then_others(lambda: 5) == distributed.together(lambda: 5) == 5
  with pytest.raises(KeyError), distributed.failing_together():
    raise KeyError
  distributed.finish()


@pytest.mark.parametrize("changes, joins", [
    ({}, True), ({"SLURM_STEP_NUM_TASKS": "1"}, False), ({"SLURM_NTASKS": "1"}, False),
    ({"SLURM_STEP_NODELIST": None}, False)])  # Of the last, a batch script without srun is an example.
def test_slurm_is_found(calls, monkeypatch, changes, joins):
  for name, value in {**SLURM, **changes}.items():
    if value is not None:
      monkeypatch.setenv(name, value)
  distributed.start()
  assert bool(calls) == joins
  calls.clear()
  distributed.start("off")
  assert not calls


def test_flags_and_time_outs_reach_jax(calls, monkeypatch):
  monkeypatch.setattr(distributed, "_check_processes", lambda num_processes: None)
  distributed.start("auto", "node1:1234", 4, 3, initialization_timeout=100, heartbeat_timeout=50)
  call, = calls
  assert {name: call[name] for name in ("coordinator_address", "num_processes", "process_id")} == dict(
      coordinator_address="node1:1234", num_processes=4, process_id=3)
  assert call["initialization_timeout"] > 100 and call["heartbeat_timeout_seconds"] > 50


@pytest.mark.parametrize("arguments, message", [
    (("auto", "node1", 2, 0), "--coordinator_address = 'node1'.*HOST:PORT"),
    (("auto", "node1:65536", 2, 0), "--coordinator_address = 'node1:65536'.*HOST:PORT"),
    (("auto", "node1:1", 2, 2), "--process_id = 2.*from 0 to 1"),
    (("auto", "node1:1", 0, 0), "--num_processes = 0.*>= 1"),
    (("auto", None, 2, 0), "--coordinator_address = None"),
    (("off", "node1:1", 2, 0), "--distributed = 'off'"),
    (("auto", "node1:1", 2, 0, 0), "--initialization_timeout = 0")])
def test_flags_that_do_not_fit(calls, arguments, message):
  with pytest.raises(SettingError, match=message):
    distributed.start(*arguments)
  assert not calls


def test_processes_that_do_not_fit_together(monkeypatch):
  with pytest.raises(SettingError, match="--num_processes = 3 .*expected 1, as in process 0"):
    distributed._check_processes(3)
  devices = [types.SimpleNamespace(process_index=process) for process in (0, 1, 1, 1)]
  monkeypatch.setattr(jax, "devices", lambda: devices)
  with pytest.raises(ValueError, match="same number of devices; there are 1 in process 0, 3 in process 1"):
    distributed._check_processes(None)


def test_who_comes_alone_is_told_to_start_all(monkeypatch, capsys):
  ended = []
  monkeypatch.setattr(distributed, "_exit", ended.append)
  message = distributed._nobody_came(dict(coordinator_address="a:1", num_processes=2), 0.01)
  with distributed._deadline(0.01, message):
    while not ended:
      pass
  error = capsys.readouterr().err
  assert ended == [1] and "all 2 processes should have met at a:1" in error
  assert "same command must be given on every host" in error and "--distributed=off" in error

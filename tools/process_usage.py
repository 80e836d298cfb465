"""CPU time and memory of this process and of the workers it has started, from Linux's /proc."""

import os
import pathlib

_PROC = pathlib.Path("/proc")


def available():
  """Returns whether this system has what the functions below read."""
  return (_PROC / "self/smaps_rollup").exists()


def cpu_seconds():
  """Returns the CPU time of this process and its living descendants, in seconds."""
  fields = [_stat(pid) for pid in [os.getpid(), *_descendants()]]
  return sum(int(f[11]) + int(f[12]) for f in fields if f) / os.sysconf("SC_CLK_TCK")


def machine_cpu_seconds():
  """Returns the CPU time of all that runs on this machine, since it started, in seconds."""
  user, nice, system, _, _, irq, softirq = (_PROC / "stat").read_text().split()[1:8]
  return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def resident_bytes():
  """Returns the resident memory of this process, and what its descendants hold on top of it."""
  own = int((_PROC / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
  for pid in _descendants():
    try:
      lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:  # It has ended.
      continue
    own += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
  return own


def _descendants():
  parents = {int(path.name): int(stat[1]) for path in _PROC.glob("[0-9]*")
             if (stat := _stat(path.name))}
  found = {os.getpid()}
  while more := {pid for pid, parent in parents.items() if parent in found} - found:
    found |= more
  return found - {os.getpid()}


def _stat(pid):
  """The fields of /proc/PID/stat from the state on, none if the process has ended."""
  try:
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
  except OSError:
    return []

"""Times the train step of a run, alone or in turns with the same step of transformers in PyTorch.

    python tools/benchmark.py --gin_file=base.gin --gin.BATCH_SIZE=64 --against=transformers

Each contestant is a process of its own; they take turns of --steps steps, --windows times, so that
whatever else the machine does hits all alike. Reported: the median window's time for a step, tokens per
second, MFU (of the data sheet's peak) and the share of the best matmul measured here, the model's own
FLOPs over those of the compiled program, the time to compile and, that included, to have done the first
step, peak memory, and how long the loop waited for data. The peer runs AdamW on its own float32
parameters, as eager and as compiled PyTorch. Run it alone on the machine. --output adds the figures, a
line of JSON each, to a file.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import platform
import statistics
import sys

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from tqdm import tqdm

from t5jax import config
from t5jax.model.flops import train_step_flops
from t5jax.settings import AT_LEAST_ONE, SettingError, check_numbers
from t5jax.tools import plan_memory, step_contestants


class Contestant:
  """One of step_contestants in a process of its own; calls of its methods go there."""

  def __init__(self, name, make, *arguments):
    context = multiprocessing.get_context("spawn")
    self.name, self.windows = name, []
    self._connection, theirs = context.Pipe()
    self._process = context.Process(target=step_contestants.serve, args=(theirs, make, arguments),
                                    daemon=True)
    self._process.start()
    theirs.close()

  def call(self, method, *values):
    """Returns what the method, or the attribute, of the contestant gives."""
    self._connection.send((method, values))
    try:
      answer = self._connection.recv()
    except EOFError:
      raise SystemExit(f"benchmark: {self.name} has ended, see above; perhaps out of memory.") from None
    if isinstance(answer, ValueError):
      raise answer
    return answer

  def close(self):
    """Ends its process."""
    self._connection.send(None)
    self._process.join()


def parse_arguments(arguments=None):
  """Returns (namespace, bindings) of the command line."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
  parser.add_argument("--gin_file", action="append", required=True, metavar="FILE",
                      help="the configuration of a run, with its --gin.NAME=value")
  parser.add_argument("--against", choices=["transformers"], help="the peer")
  parser.add_argument("--peer_modes", nargs="+", choices=["eager", "compiled"],
                      help="of the peer; both, unless given")
  parser.add_argument("--steps", type=int, default=5, help="of a window")
  parser.add_argument("--windows", type=int, default=5)
  parser.add_argument("--with_data", action="store_true",
                      help="read the run's own data instead of random tokens")
  parser.add_argument("--output", metavar="FILE", help="to append lines of JSON to")
  arguments = sys.argv[1:] if arguments is None else arguments
  bindings = [flag.removeprefix("--gin.") for flag in arguments if flag.startswith("--gin.")]
  options = parser.parse_args([flag for flag in arguments if not flag.startswith("--gin.")])
  if options.peer_modes and not options.against:
    raise SettingError("--peer_modes", options.peer_modes, "a peer, --against=transformers")
  check_numbers("benchmark", steps=(options.steps, AT_LEAST_ONE), windows=(options.windows, AT_LEAST_ONE))
  return options, bindings


def measure(contestants, options):
  """Lets the contestants take turns; fills their `windows`, in seconds per step, and `prepared`."""
  for contestant in contestants:
    print(f"{contestant.name}: compiling ...", flush=True)
    contestant.prepared = contestant.call("prepare")
  for _ in tqdm(range(options.windows), "windows", leave=False):
    for contestant in contestants:
      contestant.windows.append(contestant.call("steps", options.steps) / options.steps)


def figures(contestant, work, matmul_flops, tokens, is_ours, num_steps):
  """Returns the row of a contestant as a dict of JSON values; FLOPs and tokens are of a whole step."""
  seconds = statistics.median(contestant.windows)
  row = dict(name=contestant.name, seconds_per_step=seconds, fastest=min(contestant.windows),
             slowest=max(contestant.windows), tokens_per_second=tokens / seconds,
             matmul_share=work / seconds / matmul_flops, first_step_seconds=contestant.prepared,
             peak_bytes=contestant.call("peak_bytes"))
  if is_ours:
    program, peak = contestant.call("program"), contestant.call("peak_flops")
    row |= dict(program, mfu=peak and work / seconds / peak,
                useful_flops=work / program["matmul_flops"] / contestant.call("num_devices"))
    row |= dict(compile_seconds=contestant.call("compile_seconds"),
                input_wait_seconds=contestant.call("input_wait") / num_steps)
  return row


def table(rows):
  """Returns the rows as Markdown."""
  columns = {"step, s": lambda r: f"{r['seconds_per_step']:.4g} ({r['fastest']:.4g} to {r['slowest']:.4g})",
             "tokens/s": lambda r: f"{r['tokens_per_second']:,.0f}",
             "of matmul peak": lambda r: f"{r['matmul_share']:.1%}",
             "MFU": lambda r: f"{r['mfu']:.1%}" if r.get("mfu") else "",
             "useful FLOPs": lambda r: f"{r['useful_flops']:.1%}" if "useful_flops" in r else "",
             "compiling, s": lambda r: f"{r['compile_seconds']:.1f}" if "compile_seconds" in r else "",
             "first step, s": lambda r: f"{r['first_step_seconds']:.1f}",
             "peak memory, GB": lambda r: f"{r['peak_bytes'] / 1e9:.2f}",
             "waits for data, s":
                 lambda r: f"{r['input_wait_seconds']:.3g}" if "input_wait_seconds" in r else ""}
  lines = [["", *columns], ["---"] * (len(columns) + 1)]
  lines += [[row["name"], *(show(row) for show in columns.values())] for row in rows]
  return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratio(ours, peers):
  """Says how our tokens per second compare with the fastest peer's, with the spread over the turns."""
  fastest = min(peers, key=lambda peer: statistics.median(peer.windows))
  ratios = [theirs / own for own, theirs in zip(ours.windows, fastest.windows)]
  return (f"tokens/s of {ours.name} over {fastest.name}: {statistics.median(ratios):.3f} "
          f"({min(ratios):.3f} to {max(ratios):.3f} over {len(ratios)} turns)")


def main(arguments=None):
  """Runs the benchmark; prints a table and, against a peer, the ratio."""
  options, bindings = parse_arguments(arguments)
  trainer, _ = config.build("t5jax.trainer.Trainer", options.gin_file, bindings)
  if options.with_data and options.against:
    raise SettingError("--with_data", True, "no --against: the peer has no data")
  model, _ = plan_memory.sized(trainer)
  batch_size, lengths = trainer.data.batch_size, trainer.data.feature_lengths
  if options.output:
    _append(options.output, [])  # Not only when all is measured.
  if options.against:  # Both are to fit on the device.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  ours = Contestant("t5jax", step_contestants.T5jax, options.gin_file, bindings, model, options.with_data)
  peers = [Contestant(f"transformers, {mode}", step_contestants.Transformers, model, batch_size, lengths,
                      mode == "compiled")
           for mode in options.peer_modes or ["eager", "compiled"] if options.against]
  measure([ours, *peers], options)
  model = ours.call("model")
  work = train_step_flops(model, batch_size, lengths["inputs"], lengths["targets"])
  tokens = batch_size * (lengths["inputs"] + lengths["targets"])
  fastest_matmul = ours.call("num_devices") * max(c.call("matmul_flops") for c in [ours, *peers])
  rows = [figures(c, work, fastest_matmul, tokens, c is ours, options.windows * options.steps)
          for c in [ours, *peers]]
  device = f"{ours.call('device')}; {platform.machine()}, {os.cpu_count()} cores"
  print(f"\n{device}; batch {batch_size} at {lengths['inputs']}/{lengths['targets']}, {model.dtype}, "
        f"{model.vocab_size:,} embedding rows, {work / 1e9:,.4g} GFLOP of model work a step; best matmul "
        f"{fastest_matmul / 1e9:,.0f} GFLOP/s; windows of {options.steps} steps\n")
  print(table(rows))
  if peers:
    print("\n" + ratio(ours, peers))
  if options.output:
    _append(options.output, [dict(row, device=device, arguments=arguments or sys.argv[1:]) for row in rows])
  for contestant in [ours, *peers]:
    contestant.close()


def _append(path, rows):
  """Adds lines of JSON to a file; raises SettingError if it cannot be written."""
  try:
    with open(path, "a", encoding="utf-8") as file:
      file.writelines(json.dumps(row) + "\n" for row in rows)
  except OSError as error:
    raise SettingError("--output", path, f"a file that can be written ({error.strerror})") from error


if __name__ == "__main__":
  try:
    main()
  except ValueError as error:
    sys.exit(f"benchmark: {error}")

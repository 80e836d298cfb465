"""Says what fits on which devices, and what a run costs, before anything is allocated.

    python tools/plan_memory.py --gin_file=base.gin --device=a100-40gb --num_devices=4

From shapes alone: bytes per device of parameters, gradients and optimizer states, for the run's
optimizer and others; activations by batch and remat policy; the largest batch that fits; settings
that would do; tokens per second, hours, energy, CO2e and money of the whole run. Every assumption is
printed, and is a flag. `python -m t5jax.train --dry_run` asks the compiler instead.
"""

import argparse
import bisect
import dataclasses
import functools
import pathlib
import sys

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from t5jax import config, memory, optim
from t5jax.data.vocabulary import Vocabulary
from t5jax.devices import DEVICES
from t5jax.model.flops import train_step_flops
from t5jax.optim.precision import POLICIES
from t5jax.settings import (AT_LEAST_ONE, NON_NEGATIVE, POSITIVE, Range, SettingError, check_choice,
                            check_numbers)
from t5jax.tasks.corpus import NUM_SENTINELS

_GIB = 2 ** 30
_REMATS = ("dots", "minimal", "full")
# Those that are not here need as much as one that is: AdamW-RMS and Sophia as AdamW, and so on.
_OPTIMIZERS = (optim.adafactor, optim.adamw, optim.quantized(optim.adamw), optim.lion,
               optim.quantized(optim.lion), optim.muon, optim.schedule_free_adamw)
_PRECISIONS = [policy for policy in POLICIES if policy != "bfloat16_nearest"]  # That one loses steps.
_T5_TOKENS = 32_000 + NUM_SENTINELS
_MANY_ROWS = 2 ** 24
_FEW_ROWS = 8  # Of a microbatch: with fewer, matrix units idle and recomputing is the better way.


@dataclasses.dataclass(frozen=True)
class Fit:
  """A way to lay the run out, and whether it fits.

  Attributes:
    fsdp: devices that share the parameters.
    remat: policy.
    rows: examples of a microbatch on one device.
    num_microbatches: of the run's batch.
    footprint: memory.Footprint with these settings.
  """

  fsdp: int
  remat: str
  rows: int
  num_microbatches: int
  footprint: memory.Footprint


class Plan:
  """The run of a Trainer on some devices.

  Args:
    trainer: the parts of the run.
    model: its T5Config with vocab_size set.
    num_devices: JAX devices.
    budget: usable bytes of one.
  """

  def __init__(self, trainer, model, num_devices, budget):
    self.trainer, self.model, self.num_devices, self.budget = trainer, model, num_devices, budget
    self.batch_size, self.lengths = trainer.data.batch_size, trainer.data.feature_lengths
    mesh = trainer.mesh.make_abstract(num_devices)
    self.num_rows_split = mesh.shape["data"] * mesh.shape["fsdp"]
    self.activations = {
        remat: memory.activation_bytes(dataclasses.replace(model, remat=remat), mesh, self.lengths)
        for remat in _REMATS}

  def mesh(self, fsdp):
    """The abstract mesh with so many devices that share parameters, or None if that is not possible."""
    mesh = dataclasses.replace(self.trainer.mesh, data=None, fsdp=fsdp)
    try:
      mesh.check(self.model, self.batch_size, 1, self.num_devices)
    except SettingError:
      return None
    return mesh.make_abstract(self.num_devices)

  @functools.lru_cache
  def state(self, optimizer, precision, fsdp, num_microbatches=1):
    """memory.Footprint of everything that no batch changes."""
    model = dataclasses.replace(self.model, param_precision=precision)
    return memory.state_bytes(model, optimizer, self.mesh(fsdp), num_microbatches,
                              optimizer_memory=self.trainer.optimizer_memory)

  def fit(self, fsdp, remat):
    """Returns the Fit of the run's own optimizer and precision with this layout, or None."""
    rows_per_device = self.batch_size // self.num_rows_split
    saved, workspace = self.activations[remat]
    for num_microbatches in _divisors(rows_per_device):
      fixed = self.state(self.trainer.optimizer, self.model.param_precision, fsdp,
                         min(num_microbatches, 2))
      rows = rows_per_device // num_microbatches
      footprint = dataclasses.replace(fixed, activations=saved(rows),
                                      workspace=fixed.workspace + workspace(rows))
      if footprint.total <= self.budget:
        return Fit(fsdp, remat, rows, num_microbatches, footprint)
    return None

  def largest_rows(self, fsdp, remat):
    """How many examples fit on one device at once, whatever the run's batch."""
    fixed = self.state(self.trainer.optimizer, self.model.param_precision, fsdp).total
    saved, workspace = self.activations[remat]
    need = lambda rows: fixed + saved(rows) + workspace(rows)
    return bisect.bisect_right(range(1, _MANY_ROWS), self.budget, key=need)

  def recommend(self):
    """The first layout that fits: few devices per parameter, then little recomputation."""
    fallback = None
    given = self.trainer.mesh.shape(self.num_devices)["fsdp"]
    for fsdp in sorted({given, *_divisors(self.num_devices)}):
      if fsdp < given or self.mesh(fsdp) is None:
        continue
      for remat in _REMATS:
        fit = self.fit(fsdp, remat)
        if fit and (fit.rows >= _FEW_ROWS or fit.num_microbatches == 1):
          return fit
        if fit and (fallback is None or fit.rows > fallback.rows):
          fallback = fit
    return fallback


def main(arguments=None):
  """Prints the plan; returns 1, and says in a line what is wrong, where a setting cannot be."""
  options, bindings = _parse(arguments)
  try:
    device = _device(options)
    trainer, _ = config.build("t5jax.trainer.Trainer", options.gin_file, bindings, opens_files=False)
    model, note = sized(trainer)
    num_devices = options.num_devices or device.count
    trainer.mesh.check(model, trainer.data.batch_size, 1, num_devices)
    budget = int(options.usable * device.memory_gib * _GIB)
    plan = Plan(trainer, model, num_devices, budget)
    print(f"{options.device}: {num_devices} x {device.kind}, {device.memory_gib:g} GiB each, of "
          f"which {options.usable:.0%} usable (--usable)")
    _show_model(trainer, model, note)
    fit = plan.recommend()
    fsdp = fit.fsdp if fit else trainer.mesh.shape(num_devices)["fsdp"]
    _show_states(plan, fsdp)
    _show_activations(plan, fsdp)
    _show_recommendation(fit)
    if fit:
      _show_cost(plan, device, options)
  except ValueError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  return 0


def _show_model(trainer, model, note):
  params = memory.num_parameters(model)
  print(f"{params:,} parameters; {model.vocab_size:,} embedding rows{note}; batch "
        f"{trainer.data.batch_size} of {trainer.data.feature_lengths}, activations {model.dtype}, "
        f"parameters {model.param_precision}, optimizer {trainer.optimizer.__name__}")


def _show_states(plan, fsdp):
  print("\nGiB per device of parameters + gradients + optimizer states, without microbatches, with "
        f"parameters shared by {fsdp}")
  print(" " * 20 + "".join(f"{name:>24}" for name in _PRECISIONS))
  own = plan.trainer.optimizer
  for optimizer in (own, *(o for o in _OPTIMIZERS if o.__name__ != own.__name__)):
    cells = []
    for precision in _PRECISIONS:
      state = plan.state(optimizer, precision, fsdp)
      cells.append(" + ".join(f"{x / _GIB:.2f}" for x in (
          state.parameters, state.gradients, state.optimizer)))
    print(f"  {optimizer.__name__:<18}" + "".join(f"{cell:>24}" for cell in cells))


def _show_activations(plan, fsdp):
  print("\nMiB of activations and workspace per example, by remat policy, and the most examples at once "
        "beside the run's state")
  for remat in _REMATS:
    saved, workspace = plan.activations[remat]
    rows = plan.largest_rows(fsdp, remat)
    # Of one more: for the first few examples the logits' chunk grows as well.
    per_row = saved(rows + 1) - saved(rows) + workspace(rows + 1) - workspace(rows)
    most = f"{rows} a device, {rows * plan.num_rows_split} in all" if rows else "none"
    print(f"  {remat:<8} {per_row / 2 ** 20:>10.1f}   {most}")


def _show_recommendation(fit):
  print()
  if fit is None:
    print("Does not fit on these devices, however it is shared. More devices, a smaller model, "
          "adafactor or 8-bit states, or bfloat16 parameters would help: see the table.")
    return
  parts = dataclasses.asdict(fit.footprint)
  print(f"Fits: {fit.footprint.total / _GIB:.2f} GiB per device ("
        + ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts.items()) + ")")
  flags = [f"--gin.REMAT={fit.remat}", f"--gin.MICROBATCHES={fit.num_microbatches}"]
  if fit.fsdp > 1:
    flags.append(f"--gin.MeshConfig.fsdp={fit.fsdp}")
  print(f"with {' '.join(flags)}: {fit.rows} examples at once on a device")


def _show_cost(plan, device, options):
  lengths = plan.lengths
  flops = train_step_flops(plan.model, plan.batch_size, lengths["inputs"], lengths["targets"])
  speed = options.mfu * device.peak_flops * plan.num_devices / flops  # Steps per second.
  tokens_per_step = plan.batch_size * sum(lengths[name] for name in ("inputs", "targets"))
  steps = _steps(plan.trainer.budget, tokens_per_step, plan.batch_size, speed, options.tokens)
  hours = steps / speed / 3600
  print(f"\n{steps:,.0f} steps, {steps * tokens_per_step / 1e9:.2f} billion tokens at "
        f"{speed * tokens_per_step:,.0f} tokens/s: {hours:,.1f} hours")
  print(f"  assumed: {options.mfu:.0%} of {device.peak_flops / 1e12:g} TFLOP/s (--mfu; nanoT5's 10-hour "
        "run on an A100 had 32 %), no padding, no time for evaluation")
  watts = options.watts or device.watts
  if watts is None:
    print("  energy: the maker does not publish the power of this device; give --watts")
  else:
    energy = hours * plan.num_devices * watts / 1000 * options.pue
    print(f"  {energy:,.1f} kWh, {energy * options.carbon:,.0f} gCO2e")
    print(f"  assumed: {watts:g} W per device all the time (--watts), x {options.pue:g} for cooling and "
          f"the rest (--pue), {options.carbon:g} g per kWh (--carbon; the world's mean)")
  price = device.dollars_per_hour if options.price is None else options.price
  if price is None:
    print("  money: no list price for this device; give --price")
  else:
    print(f"  ${hours * plan.num_devices * price:,.0f}\n  assumed: ${price:g} per device and hour "
          "(--price; list prices of 2025, rounded)")


def _steps(budget, tokens_per_step, batch_size, speed, tokens):
  if tokens is not None:
    return tokens / tokens_per_step
  per_step = dict(steps=1, tokens=tokens_per_step, examples=batch_size, seconds=1 / speed)
  return budget.amount / per_step[budget.unit]


def sized(trainer):
  """Returns (T5Config with vocab_size set, what to say of it); reads no more than a vocabulary file."""
  task, model = trainer.data.task, trainer.model
  if model.vocab_size is not None:
    return model, ""
  path, size = getattr(task, "vocab_file", None), getattr(task, "vocab_size", None)
  if path is not None and pathlib.Path(path).expanduser().is_file():
    return model.with_vocabulary(Vocabulary(path).size), f" for {path}"
  if size is not None:
    return model.with_vocabulary(size + NUM_SENTINELS), f" for {size:,} pieces and {NUM_SENTINELS} sentinels"
  return model.with_vocabulary(_T5_TOKENS), " (T5's own vocabulary assumed)"


def _divisors(n):
  return [d for d in range(1, n + 1) if n % d == 0]


def _device(options):
  options.device = options.device.lower()
  check_choice("--device", options.device, list(DEVICES))
  check_numbers("plan_memory", num_devices=(options.num_devices, AT_LEAST_ONE),
                usable=(options.usable, Range(0, 1, open_low=True)),
                mfu=(options.mfu, Range(0, 1, open_low=True)), tokens=(options.tokens, POSITIVE),
                watts=(options.watts, POSITIVE), pue=(options.pue, AT_LEAST_ONE),
                carbon=(options.carbon, NON_NEGATIVE), price=(options.price, NON_NEGATIVE))
  return DEVICES[options.device]


def _parse(arguments):
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
  add = parser.add_argument
  add("--gin_file", action="append", required=True, metavar="FILE", help="the run's configuration, "
      "with its --gin.NAME=value")
  add("--device", default="a100-80gb", help=", ".join(DEVICES))
  add("--num_devices", type=int, help="JAX devices; default 1, or what the name says")
  add("--usable", type=float, default=0.9, help="share of the memory that the run may use")
  add("--tokens", type=float, help="budget, instead of the configuration's")
  add("--mfu", type=float, default=0.3, help="share of the peak FLOP/s that the model's work gets")
  add("--watts", type=float, help="per device")
  add("--pue", type=float, default=1.5, help="power of the whole site per power of the devices")
  add("--carbon", type=float, default=480, help="gCO2e per kWh")
  add("--price", type=float, help="dollars per device and hour")
  options, rest = parser.parse_known_args(arguments)
  if unknown := [flag for flag in rest if not flag.startswith("--gin.")]:
    parser.error(f"unknown argument {unknown[0]}; settings are given as --gin.NAME=value")
  return options, [flag.removeprefix("--gin.") for flag in rest]


if __name__ == "__main__":
  sys.exit(main())

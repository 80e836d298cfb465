"""Accelerators that labs train on: memory, power and price. Their speed is in model/flops.py.

Memory and power are the makers' (board or chip limits; TPU: Jouppi et al., arXiv:2304.01433 and
"Ten Lessons", ISCA 2021; for v5e, v5p and v6e nothing is published). Prices are Google Cloud's list
prices on demand in the United States in 2025, without the host where it is billed apart; they change,
and differ elsewhere. All are per JAX device: a core of a TPU v2 or v3, otherwise a chip.
"""

import dataclasses

from t5jax.model.flops import PEAK_FLOPS


@dataclasses.dataclass(frozen=True)
class Device:
  """One JAX device.

  Attributes:
    kind: what JAX calls it, a key of PEAK_FLOPS.
    memory_gib: its memory.
    watts: its power at full load, or None where it is not published.
    dollars_per_hour: its price, or None where nobody rents it out at a list price.
    count: how many the name stands for: 8 in "v3-8".
  """

  kind: str
  memory_gib: float
  watts: float | None
  dollars_per_hour: float | None
  count: int = 1

  @property
  def peak_flops(self):
    """Peak bfloat16 FLOP/s (float16 where there is no bfloat16)."""
    return PEAK_FLOPS[self.kind]


DEVICES = {
    "t4": Device("Tesla T4", 16, 70, 0.35),
    "v100-16gb": Device("Tesla V100", 16, 300, 2.48),
    "v100-32gb": Device("Tesla V100", 32, 300, None),
    "l4": Device("NVIDIA L4", 24, 72, 0.56),
    "rtx3090": Device("NVIDIA GeForce RTX 3090", 24, 350, None),
    "rtx4090": Device("NVIDIA GeForce RTX 4090", 24, 450, None),
    "a100-40gb": Device("NVIDIA A100", 40, 400, 2.93),
    "a100-80gb": Device("NVIDIA A100", 80, 400, 3.93),
    "h100": Device("NVIDIA H100", 80, 700, 9.80),
    "h200": Device("NVIDIA H200", 141, 700, None),
    "v2-8": Device("TPU v2", 8, 140, 4.50 / 8, 8),
    "v3-8": Device("TPU v3", 16, 225, 8.00 / 8, 8),
    "v4": Device("TPU v4", 32, 192, 3.22),
    "v5e": Device("TPU v5 lite", 16, None, 1.20),
    "v5p": Device("TPU v5", 95, None, 4.20),
    "v6e": Device("TPU v6 lite", 32, None, 2.70),
}

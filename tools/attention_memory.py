"""Prints the memory that attention takes beside its inputs and results, by length and implementation.

    python tools/attention_memory.py --lengths 512 1024 2048 4096 8192

The compiler's own count of temporary bytes, for self-attention with T5's bias, forward and backward, of
one example in float32; nothing is run. It is that of the devices there are: on a CPU the flash kernels
are interpreted, as loops whose arrays the compiler counts like any.
"""

import argparse
import pathlib
import sys

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp

from t5jax.model.attend import attend
from t5jax.model.attention import OffsetBias, offset_steps
from t5jax.settings import AT_LEAST_ONE, check_numbers


def temporary_bytes(implementation, length, num_heads, head_dim, causal=False):
  """Returns what one attention, forward and backward, needs beside arguments and results."""
  starts, buckets = offset_steps(not causal, 32, 128)
  operand = jax.ShapeDtypeStruct((1, length, num_heads, head_dim), jnp.float32)
  values = jax.ShapeDtypeStruct((num_heads, len(buckets)), jnp.float32)

  def gradients(query, key, value, values, d_out):
    run = lambda query, key, value, values: attend(
        query, key, value, bias=OffsetBias(values, starts), causal=causal, implementation=implementation)
    return jax.vjp(run, query, key, value, values)[1](d_out)

  compiled = jax.jit(gradients).lower(operand, operand, operand, values, operand).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def main():
  """Prints the table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
  parser.add_argument("--num_heads", type=int, default=12)
  parser.add_argument("--head_dim", type=int, default=64)
  args = parser.parse_args()
  check_numbers("attention_memory", lengths=(min(args.lengths), AT_LEAST_ONE),
                num_heads=(args.num_heads, AT_LEAST_ONE), head_dim=(args.head_dim, AT_LEAST_ONE))
  print(f"MiB beside inputs and results, forward and backward, of one example with {args.num_heads} heads "
        f"of {args.head_dim}, float32, {jax.devices()[0].device_kind}\n")
  print(f"{'length':>8}{'xla':>12}{'pallas':>12}{'ratio':>9}")
  for length in args.lengths:
    xla, pallas = (temporary_bytes(name, length, args.num_heads, args.head_dim) / 2 ** 20
                   for name in ("xla", "pallas"))
    print(f"{length:>8}{xla:>12.1f}{pallas:>12.1f}{xla / pallas:>9.1f}", flush=True)


if __name__ == "__main__":
  try:
    main()
  except ValueError as error:
    sys.exit(str(error))

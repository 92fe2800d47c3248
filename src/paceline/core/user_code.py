"""Load your functions by name: `file.py:function` or `package.module:function`."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import ConfigError

_LONGEST_SHOWN = 500


def load_function(spec: str) -> Callable[..., Any]:
    """Import what stands before the last colon and return the function named after it.

    A file is loaded under its stem, with its directory on `sys.path`, so that its siblings can be
    imported; loading it again returns the same module. A module is looked for in the current
    directory first, as `python -m` does. Text of any other form imports nothing: a URL or a drive
    letter is not a module.
    """
    place, _, name = spec.rpartition(":")
    is_file = place.endswith(".py")
    if not name.isidentifier() or not (is_file or _is_module_name(place)):
        raise ConfigError(
            f"'{_cut(spec)}' names no function; write file.py:function or package.module:function"
        )
    module = _load_file(place) if is_file else _load_module(place)
    try:
        found: Callable[..., Any] = getattr(module, name)
    except AttributeError:
        listed = ", ".join(_list_functions(module)) or "none"
        raise ConfigError(f"{place} has no function '{name}'; it has: {listed}") from None
    except Exception as error:  # from the module's own __getattr__
        raise ConfigError(f"{spec} cannot be loaded: {describe_failure(error)}") from error
    if not callable(found):
        raise ConfigError(f"{spec} is a {type(found).__name__}, expected a function")
    return found


def describe_failure(error: BaseException, file: str | None = None) -> str:
    """The cause in one line, with the line of your file where it arose, if known."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # an exception whose own __str__ fails
        text = type(error).__name__
    text = _cut(" ".join(text.split()).removesuffix(":"))
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f"{text} (line {lines[-1]})" if lines else text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _is_module_name(place: str) -> bool:
    return all(part.isidentifier() for part in place.split("."))


def _find(place: str) -> Path:
    try:
        path = Path(place).expanduser().resolve()
        there = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, forbidden, no such ~user
        raise ConfigError(f"{_cut(place)} cannot be opened: {describe_failure(error)}") from error
    if not there:
        raise ConfigError(f"there is no file {place} (looked for {path})")
    return path


def _load_file(place: str) -> ModuleType:
    path = _find(place)
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        where = getattr(loaded, "__file__", None) or "Python itself"
        raise ConfigError(
            f"{place} would be module '{name}', but that name is taken by {where}; rename the file"
        )
    _put_first_on_path(path.parent)
    plan = importlib.util.spec_from_file_location(name, path)
    assert plan is not None
    assert plan.loader is not None
    module = importlib.util.module_from_spec(plan)
    sys.modules[name] = module
    try:
        plan.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        cause = describe_failure(error, str(path))
        raise ConfigError(f"{place} failed while it was imported: {cause}") from error
    return module


def _load_module(name: str) -> ModuleType:
    try:
        here = Path.cwd()
    except OSError as error:
        raise ConfigError(f"the current directory is gone: {describe_failure(error)}") from error
    _put_first_on_path(here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name == missing or name.startswith(missing + ".")):
            if name in (entry.name for entry in here.iterdir()):
                raise ConfigError(f"{name} is not a Python file; give it the suffix .py") from None
            raise ConfigError(
                f"there is no module '{missing}' on the path or in {here}; "
                "write file.py:function to name a file"
            ) from None
        cause = describe_failure(error, _find_file(name, error))
        raise ConfigError(f"module {name} failed while it was imported: {cause}") from error


def _find_file(name: str, error: BaseException) -> str | None:
    """The module's own file, if the error passed through it."""
    stem = name.replace(".", "/")
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return next((f for f in files if f.endswith((f"{stem}.py", f"{stem}/__init__.py"))), None)


def _put_first_on_path(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _list_functions(module: ModuleType) -> list[str]:
    """The public functions and classes that the module itself defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]

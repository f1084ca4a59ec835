"""Code that both the package and its entry point in Dask use; it does not import Dask's arrays.

It lies outside of the package, whose import takes Dask's arrays.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

#: Environment variables that are no keys of Dask's configuration, and say so by one underscore.
VARIABLES = ("DASK_COOP_INSTALL", "DASK_COOP_CACHE", "DASK_COOP_PORTABLE")

#: That of whoever changes `sys.meta_path`.
_lock = threading.Lock()

#: What DASK_COOP_INSTALL may be besides "cupy", for chunks on GPUs.
ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class WhenImported(MetaPathFinder):
    """Calls a function with each of some modules when it has been imported.

    It stands in `sys.meta_path` from `start` to `stop`, and leaves the modules as they would be.
    """

    def __init__(self, names: Sequence[str], done: Callable[[ModuleType], None]) -> None:
        self.names, self.done = frozenset(names), done

    def start(self) -> None:
        """Wait for the modules."""
        with _lock:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Wait no more, but for the modules that are being imported."""
        with _lock:
            # A new list: imports of other threads would pass over a finder of a shorter one.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Find a module as the finders behind this one do."""
        if name not in self.names:
            return None
        finders = sys.meta_path
        # An import that began before `stop` may come here after it.
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        specs = (finder.find_spec(name, path, target) for finder in behind)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loading(spec.loader, self.done)
        return spec


class _Loading(Loader):
    """Executes a module by its loader, and calls a function with it."""

    def __init__(self, loader: Any, done: Callable[[ModuleType], None]) -> None:
        self.loader, self.done = loader, done

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.done(module)


def finish_imports(names: Iterable[str]) -> None:
    """Wait for those modules that other threads are importing; what they define is there then."""
    for name in names:
        # The thread that imports a module gets the exceptions of its code.
        with suppress(Exception):
            if name in sys.modules:
                import_module(name)


@cache
def defaults() -> dict[str, Any]:
    """Return what dask_coop.yaml holds, registered as defaults of Dask's configuration."""
    import dask
    import yaml

    file = Path(__file__).with_name("dask_coop") / "dask_coop.yaml"
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    dask.config.update_defaults(found)
    return found


def wanted_chunks() -> str | None:
    """Return which chunks DASK_COOP_INSTALL asks for, or None if it does not.

    Raises
    ------
    ValueError
        If it is neither on, off nor "cupy".
    """
    value = os.environ.get("DASK_COOP_INSTALL", "").lower()
    if value in OFF:
        return None
    if value not in (*ON, "cupy"):
        raise ValueError(f"DASK_COOP_INSTALL must be 1, 0 or cupy, got {value!r}")
    return "cupy" if value == "cupy" else "numpy"

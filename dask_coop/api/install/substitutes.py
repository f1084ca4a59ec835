"""Substitutes: functions that stand in the place of Dask's, xarray's and flox's.

    x.sum()  da.sum(x)  np.sum(x)  xarray  -->  dask.array.reductions.sum
                                                     |
                                                a substitute --> ours
                                                     '---------> the original, where ours refuses

Substitutes are not called within tasks: graphs have functions of chunks, ours or Dask's, and run
where nothing is installed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple

from dask.array.core import _HANDLED_FUNCTIONS

from dask_coop.api.call.fallback import fall_back, left_to_dask, originals, remember
from dask_coop.api.call.report import count, uncounted
from dask_coop.errors import Refused

logger: logging.Logger = logging.getLogger(__name__)

#: Where originals are looked for: whatever module of theirs has one under some name.
PACKAGES = ("dask.array", "flox", "xarray")


class Row(NamedTuple):
    """An original, and what serves it.

    Attributes
    ----------
    module : str
        Where it is defined, or Dask has it.
    name : str
        Of a method with its class: ``"Class.method"``.
    build : callable
        Ours, with the parameters of the original. What it raises is no error yet: the original
        is then called, which serves the call or says what is wrong with it.
    concerns : callable
        Whether arguments are any of ours: what has nothing of Dask is not, and nothing to report.
    """

    module: str
    name: str
    build: Callable[..., Any]
    concerns: Callable[..., bool] = lambda *args, **kwargs: True


#: By module and name: what stands in the place of the original that was there; of several, where
#: another library has put a function of its own there meanwhile.
_made: dict[tuple[str, str], dict[Callable[..., Any], Callable[..., Any]]] = {}


def put(rows: Iterable[Row], is_installed: Callable[[], bool]) -> None:
    """Put substitutes in the places of originals, as far as their modules are imported."""
    made: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
    for row in rows:
        holder, attribute = _holder(row)
        if holder is None:
            continue
        there = getattr(holder, attribute, None)
        if there is None:
            logger.warning("%s has no %s, which is left alone", row.module, row.name)
            continue
        here = _made.setdefault((row.module, row.name), {})
        if there not in here and there not in here.values():
            here[there] = _substitute(there, row, is_installed)
            originals[here[there]] = there
        made += here.items()
        if isinstance(holder, type):
            setattr(holder, attribute, here.get(there, there))
    _replace(made)


def take_back(rows: Iterable[Row]) -> None:
    """Put originals back where their substitutes are."""
    made: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
    for row in rows:
        here = {new: old for old, new in _made.get((row.module, row.name), {}).items()}
        made += here.items()
        holder, attribute = _holder(row)
        if isinstance(holder, type) and (original := here.get(getattr(holder, attribute))):
            setattr(holder, attribute, original)
    _replace(made)


def _holder(row: Row) -> tuple[Any, str]:
    """Return the module or class that has an original, None if it is not imported, and its name."""
    holder: Any = sys.modules.get(row.module)
    *classes, attribute = row.name.split(".")
    for name in classes:
        holder = getattr(holder, name, None)
    return holder, attribute


def _replace(pairs: Iterable[tuple[Callable[..., Any], Callable[..., Any]]]) -> None:
    """Replace the first function of each pair by the second one, wherever modules have it."""
    new = {id(old): new for old, new in pairs}
    for names in (*map(vars, _modules()), _HANDLED_FUNCTIONS):
        for name, value in names.copy().items():
            if id(value) in new:
                names[name] = new[id(value)]


def _modules() -> Iterator[ModuleType]:
    # Other threads import meanwhile, and a copy is one step for them.
    for name, module in sys.modules.copy().items():
        is_theirs = any(name == p or name.startswith(f"{p}.") for p in PACKAGES)
        # Tests compare functions with others.
        if is_theirs and isinstance(module, ModuleType) and ".tests" not in name:
            yield module


def _substitute(
    original: Callable[..., Any], row: Row, is_installed: Callable[[], bool]
) -> Callable[..., Any]:
    @wraps(original)
    def substitute(*args: Any, **kwargs: Any) -> Any:
        if not is_installed() or not row.concerns(*args, **kwargs):
            return original(*args, **kwargs)
        try:
            return row.build(*args, **kwargs)
        except (Refused, TypeError, ValueError, LookupError, NotImplementedError) as error:
            cause = str(error) or type(error).__name__
        # xarray's and flox's have Dask's functions do the work, which ours serve.
        is_dasks = row.module.startswith("dask.")
        with uncounted(), left_to_dask() if is_dasks else nullcontext():
            result = original(*args, **kwargs)
        fall_back(logger, row.name, "is left to the original function", cause, Refused)
        remember(row.name, cause, result, [*args, *kwargs.values()])
        count(row.name, args[0] if args else None, "Dask", cause)
        return result

    return substitute

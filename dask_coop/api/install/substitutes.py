"""Substitutes: functions that replace those of Dask, xarray, flox and xhistogram.

    x.sum()  da.sum(x)  np.sum(x)  xarray  -->  dask.array.reductions.sum
                                                     |
                                                a substitute --> ours
                                                     '---------> the original, if ours refuses

Tasks do not call substitutes: graphs hold functions of chunks, ours or Dask's, and so run on
workers without an installation.
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

#: Packages in whose modules originals are replaced, under whatever name.
PACKAGES = ("dask.array", "dask_array", "flox", "xarray", "xarray_histogram", "xhistogram")


class Row(NamedTuple):
    """An original function, and ours in its place.

    Attributes
    ----------
    module : str
        The module in which to find the original.
    name : str
        The name of the original; ``"Class.method"`` for a method.
    build : callable
        Our function, with the parameters of the original. If it raises, the original is called,
        and returns a result or raises its own error.
    concerns : callable
        Whether to call `build` for given arguments. Other calls, such as those without Dask arrays,
        go to the original and are not reported.
    """

    module: str
    name: str
    build: Callable[..., Any]
    concerns: Callable[..., bool] = lambda *args, **kwargs: True


#: By module and name: the substitute of each original. There are several originals if another
#: library has replaced the function meanwhile.
_substitutes: dict[tuple[str, str], dict[Callable[..., Any], Callable[..., Any]]] = {}


def put(rows: Iterable[Row], is_installed: Callable[[], bool]) -> None:
    """Replace originals by substitutes, in modules that are already imported."""
    pairs: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
    for row in rows:
        holder, attribute = _holder(row)
        if holder is None:
            continue
        current = getattr(holder, attribute, None)
        if current is None:
            logger.warning("%s has no %s, which is left alone", row.module, row.name)
            continue
        substitutes = _substitutes.setdefault((row.module, row.name), {})
        if current not in substitutes and current not in substitutes.values():
            substitutes[current] = _substitute(current, row, is_installed)
            originals[substitutes[current]] = current
        pairs += substitutes.items()
        if isinstance(holder, type):
            setattr(holder, attribute, substitutes.get(current, current))
    _replace(pairs)


def take_back(rows: Iterable[Row]) -> None:
    """Replace substitutes by their originals."""
    pairs: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
    for row in rows:
        replaced = {new: old for old, new in _substitutes.get((row.module, row.name), {}).items()}
        pairs += replaced.items()
        holder, attribute = _holder(row)
        if isinstance(holder, type) and (original := replaced.get(getattr(holder, attribute))):
            setattr(holder, attribute, original)
    _replace(pairs)


def _holder(row: Row) -> tuple[Any, str]:
    """Return the module or class of an original (None if not imported), and its name there."""
    holder: Any = sys.modules.get(row.module)
    *classes, attribute = row.name.split(".")
    for name in classes:
        holder = getattr(holder, name, None)
    return holder, attribute


def _replace(pairs: Iterable[tuple[Callable[..., Any], Callable[..., Any]]]) -> None:
    """Replace the first function of each pair by the second, in all modules of `PACKAGES`."""
    new = {id(old): new for old, new in pairs}
    for names in (*map(vars, _modules()), _HANDLED_FUNCTIONS):
        for name, value in names.copy().items():
            if id(value) in new:
                names[name] = new[id(value)]


def _modules() -> Iterator[ModuleType]:
    # Other threads may import meanwhile, and copying is atomic.
    for name, module in sys.modules.copy().items():
        is_theirs = any(name == p or name.startswith(f"{p}.") for p in PACKAGES)
        # Tests of these packages compare their functions with others.
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
        # Within xarray's, flox's and xhistogram's originals, Dask's functions are still ours.
        is_dasks = row.module.startswith(("dask.", "dask_array"))
        with uncounted(), left_to_dask() if is_dasks else nullcontext():
            result = original(*args, **kwargs)
        fall_back(logger, row.name, "is left to the original function", cause, Refused)
        remember(row.name, cause, result, [*args, *kwargs.values()])
        count(row.name, args[0] if args else None, "Dask", cause)
        return result

    return substitute

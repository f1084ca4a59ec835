"""Fallbacks: calls left to Dask's function, or run as a graph.

The configuration's ``coop.fallback`` decides: "allow" logs a fallback at the level INFO, "warn"
issues a `FallbackWarning`, and "raise" raises an error.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from dask.base import is_dask_collection
from dask.core import flatten

from dask_coop.errors import FallbackWarning
from dask_coop.graph import config

#: Packages whose frames lie between a user's call and a fallback.
_BETWEEN = ("dask_coop", "dask")

#: Dask's functions, by the substitutes that `dask_coop.install` puts in their places.
originals: dict[Callable[..., Any], Callable[..., Any]] = {}


def dasks(function: Any) -> Any:
    """Return Dask's own function, even if `function` is a substitute of ours."""
    return originals.get(function, function)


_in_dask: ContextVar[bool] = ContextVar("_in_dask", default=False)


@contextmanager
def left_to_dask() -> Iterator[None]:
    """Make substitutes call Dask's functions within: blocks may be unlike their meta there."""
    token = _in_dask.set(True)
    try:
        yield
    finally:
        _in_dask.reset(token)


def is_left_to_dask() -> bool:
    """Tell whether a function of Dask's is running in place of one of ours."""
    return _in_dask.get()


def fall_back(
    logger: logging.Logger,
    name: str,
    how: str,
    cause: object,
    refusal: type[Exception],
    level: int = logging.INFO,
) -> None:
    """Log a fallback of the function `name`, warn of it, or raise a `refusal`.

    Parameters
    ----------
    logger : logging.Logger
        The logger for fallbacks that are allowed.
    name : str
    how : str
        The fallback, such as "runs as a graph".
    cause : object
        An object whose text is the reason.
    refusal : type of Exception
        The exception to raise if fallbacks are not allowed.
    level : int
        The level of the log entry if fallbacks are allowed.
    """
    choice = config.get("coop.fallback", "allow", "warn", "raise")
    if choice == "raise":
        error = refusal(f"{cause}; with coop.fallback='allow' {name} {how}")
        raise error from cause if isinstance(cause, Exception) else None
    if choice == "warn":
        message = f"{name} {how}: {cause}"
        warn(message)
    else:
        logger.log(level, "%s %s: %s", name, how, cause)


def warn(message: str) -> None:
    """Issue a `FallbackWarning` for the line of the user's call."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, FallbackWarning, stacklevel=level)


class HandOver(NamedTuple):
    """A call left to Dask: the function, the cause, and the names of its input collections."""

    function: str
    cause: str
    inputs: frozenset[str]


#: The latest calls left to Dask, by the names of their results; `dask_coop.explain` reads them.
_hand_overs: OrderedDict[str, HandOver] = OrderedDict()
LIMIT = 1000


def remember(name: str, cause: str, results: Any, inputs: Any) -> None:
    """Record why the results of the function `name` with these `inputs` are Dask's."""
    hand_over = HandOver(name, cause, frozenset(_names(inputs)))
    # Skip inputs that Dask returned unchanged.
    for result in set(_names(results)) - hand_over.inputs:
        # Both steps are atomic; other threads may drop the entry between them.
        _hand_overs.pop(result, None)
        _hand_overs[result] = hand_over
    while len(_hand_overs) > LIMIT:
        _hand_overs.popitem(last=False)


def _names(value: Any) -> Iterator[str]:
    """Yield the names of the Dask collections in nested sequences."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from _names(part)
    elif is_dask_collection(value):
        key = next(flatten(value.__dask_keys__()))
        yield str(key[0] if isinstance(key, tuple) else key)


def recall(result: str) -> HandOver | None:
    """Return the recorded call left to Dask that made the collection `result`, or None."""
    return _hand_overs.get(result)

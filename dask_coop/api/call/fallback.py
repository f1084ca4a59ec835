"""What is not done as it was asked for, but otherwise: left to Dask's function, or run as a graph.

The configuration's ``coop.fallback`` says what becomes of it: "allow" logs it at the level INFO,
"warn" warns of it, and "raise" refuses it.
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

#: Dask's functions, by ours that `dask_coop.install` puts in their places.
originals: dict[Callable[..., Any], Callable[..., Any]] = {}


def dasks(function: Any) -> Any:
    """Return Dask's function, also where ours stands in its place."""
    return originals.get(function, function)


_in_dask: ContextVar[bool] = ContextVar("_in_dask", default=False)


@contextmanager
def left_to_dask() -> Iterator[None]:
    """Have what Dask's function calls within be Dask's: it may make blocks unlike their meta."""
    token = _in_dask.set(True)
    try:
        yield
    finally:
        _in_dask.reset(token)


def is_left_to_dask() -> bool:
    """Tell whether a function of Dask's is called that serves what ours has refused."""
    return _in_dask.get()


def fall_back(
    logger: logging.Logger,
    name: str,
    how: str,
    cause: object,
    refusal: type[Exception],
    level: int = logging.INFO,
) -> None:
    """Say that the function `name` does otherwise, or raise a `refusal`.

    Parameters
    ----------
    logger : logging.Logger
        What is called with it where it is simply allowed.
    name : str
    how : str
        What the function does, such as "runs as a graph".
    cause : object
        Whose text tells why.
    refusal : type of Exception
        What is raised where it is not allowed.
    level : int
        At which it is logged where it is allowed.
    """
    choice = config.get("coop.fallback", "allow", "warn", "raise")
    if choice == "raise":
        raised = refusal(f"{cause}; with coop.fallback='allow' {name} {how}")
        raise raised from cause if isinstance(cause, Exception) else None
    if choice == "warn":
        message = f"{name} {how}: {cause}"
        warnings.warn(message, FallbackWarning, stacklevel=_frames_of_ours() + 1)
    else:
        logger.log(level, "%s %s: %s", name, how, cause)


def _frames_of_ours() -> int:
    """Return how many frames of this library stand between here and its caller."""
    frame, count = sys._getframe(1), 0
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "dask_coop":
        frame, count = frame.f_back, count + 1
    return count


class HandOver(NamedTuple):
    """What was left to Dask: the function, why, and the names of the collections that it took."""

    function: str
    cause: str
    inputs: frozenset[str]


#: The latest results that were left to Dask, by their names; `dask_coop.explain` tells their cause.
_hand_overs: OrderedDict[str, HandOver] = OrderedDict()
LIMIT = 1000


def remember(name: str, cause: str, results: Any, inputs: Any) -> None:
    """Keep in mind why the results of the function `name`, made of `inputs`, are Dask's."""
    hand_over = HandOver(name, cause, frozenset(_names(inputs)))
    # What Dask hands back as it was given is no work.
    for result in set(_names(results)) - hand_over.inputs:
        # Other threads may drop it between two steps, each of which is one for them.
        _hand_overs.pop(result, None)
        _hand_overs[result] = hand_over
    while len(_hand_overs) > LIMIT:
        _hand_overs.popitem(last=False)


def _names(value: Any) -> Iterator[str]:
    """Yield what keys of the lazy parts of nested sequences begin with, in their graphs."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from _names(part)
    elif is_dask_collection(value):
        key = next(flatten(value.__dask_keys__()))
        yield str(key[0] if isinstance(key, tuple) else key)


def recall(result: str) -> HandOver | None:
    """Return why the collection of that name is Dask's, if it was left to Dask lately."""
    return _hand_overs.get(result)

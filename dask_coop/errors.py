"""Exceptions and warnings: those that a user can meet, and `Absent`, which we catch ourselves.

`remedy` is a word of help for their messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Refused(TypeError):
    """Elements or chunks that dask_coop does not take, for the reason that the message tells.

    Where Dask has a function of the same name, that one takes them instead and nothing is raised,
    unless the configuration's ``coop.fallback`` is "raise".
    """


class RefusedByDask(Refused, ValueError, NotImplementedError):
    """Elements or chunks that Dask's function, to which they were left, does not take either.

    The message tells why they were left to it first, then what it said, which is also the cause.
    """


class Declined(RuntimeError):
    """What engine="collective" cannot run, for the reason that the message tells.

    A graph runs it instead and nothing is raised, unless ``coop.fallback`` is "raise".
    """


class Silent(Declined):
    """What engine="collective" does not run because a worker is silent; a graph may wait for it."""


class Absent(RuntimeError):
    """A chunk, or the worker that had it, is gone: a graph runs in the place of the collective."""


class Incompatible(Declined, Absent):
    """What engine="collective" cannot run because distributed or Dask is not as it expects."""


class Closed(RuntimeError):
    """Pinned memory, and the threads that copy through it, were given back in the middle."""


class FallbackWarning(UserWarning):
    """What is left to Dask's function or runs as a graph, where ``coop.fallback`` is "warn"."""


class CooperativeTimeout(RuntimeError):
    """A GPU waited in vain for another one, at a barrier that all of a launch have to come to."""


class UserError(Exception):
    """What the user of the command line can put right; the message, a line on stderr, says how."""


def remedy(dtype: np.dtype[Any], kinds: str) -> str:
    """Return what makes of elements of a dtype that is refused some of one of those `kinds`."""
    if dtype.names:
        return f"take one of its fields: x[{dtype.names[0]!r}]"
    if dtype.kind in "mM":
        return ".view('i8') has its ticks, NaT as the least integer"
    if dtype.kind == "c" and "c" not in kinds:
        return "take .real, .imag or abs() of it"
    wide = "c16" if dtype.kind == "c" else "f8" if "f" in kinds else "i8"
    return f"convert it with .astype({wide!r})"

"""What is called, and what NumPy makes of the same array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from support.clusters import HALVES, affine_of_line, along

import dask_coop as dc

#: No element is larger; those from `LIMIT` on are too large for the monoid that raises.
MOST, LIMIT = 50, 49
WORDS = "soak: an element is too large"


@dataclass(frozen=True)
class Call:
    """A function of an array and an engine, beside the same of a NumPy array.

    Attributes
    ----------
    name : str
    ours, numpy : callable
    lazy : bool
        Whether it is several functions in one graph, so that it takes no engine.
    is_index : bool
        Whether the result is the index of an element, of all as one line.
    may_raise : bool
        Whether it raises of some arrays; what kernels combine never does.
    """

    name: str
    ours: Callable[..., Any]
    numpy: Callable[[Any], Any]
    lazy: bool = False
    is_index: bool = False
    may_raise: bool = False


def combine_or_raise(a: Any, b: Any) -> Any:
    found = np.maximum(a, b)
    if np.any(found >= LIMIT):
        raise ValueError(WORDS)
    return found


def limited(of: Callable[[Any], Any], host: Any) -> Any:
    if np.any(host >= LIMIT):
        raise ValueError(WORDS)
    return of(host)


RAISING = dc.Monoid("raising", combine_or_raise, -np.inf, "f8", commutative=True)


def thirds(x: Any) -> Any:
    return np.arange(x.shape[-1]) % 3


def groups(host: Any) -> Any:
    labels = thirds(host)
    return np.stack([host[..., labels == k].sum(-1) for k in range(3)], -1)


def standardised(host: Any) -> Any:
    rest = host - host.mean(0)
    return np.array([rest.std(), np.abs(rest).cumsum(0).max()])


def standardised_ours(x: Any) -> Any:
    import dask.array as da

    rest = x - dc.mean(x, axis=0)
    return da.stack([dc.std(rest), dc.max(dc.cumsum(abs(rest), axis=0))])


CALLS = [
    Call("sum", dc.sum, np.sum),
    Call("argmax", dc.argmax, np.argmax, is_index=True),
    Call("var", partial(dc.var, axis=0), partial(np.var, axis=0)),
    Call("min", partial(dc.min, axis=-1, keepdims=True), partial(np.min, axis=-1, keepdims=True)),
    Call("describe", lambda x, **kw: dc.describe(x, **kw).std, np.std),
    Call("histogram", lambda x, **kw: dc.histogram(x, 7, **kw)[0], lambda a: np.histogram(a, 7)[0]),
    # Its table goes from worker to worker.
    Call(
        "histogram, 40000 bins",
        lambda x, **kw: dc.histogram(x, 40_000, (-99, 99), **kw)[0],
        lambda a: np.histogram(a, 40_000, (-99, 99))[0],
    ),
    Call(
        "groupby_reduce",
        lambda x, **kw: dc.groupby_reduce(x, thirds(x), func="sum", axis=-1, **kw)[0],
        groups,
    ),
    Call("cumsum", partial(dc.cumsum, axis=0), lambda a: a.cumsum(0)),
    Call("cumsum, last axis", partial(dc.cumsum, axis=-1), lambda a: a.cumsum(-1)),
    Call(
        "cummax, reverse",
        lambda x, **kw: dc.cummax(x, 0, reverse=True, **kw),
        lambda a: np.maximum.accumulate(a[::-1])[::-1],
    ),
    Call(
        "reduce, own monoid",
        lambda x, **kw: dc.reduce(x, HALVES, axis=0, **kw),
        lambda a: along(affine_of_line, a)[-1],
    ),
    Call(
        "scan, own monoid",
        lambda x, **kw: dc.scan(x, HALVES, axis=0, **kw),
        partial(along, affine_of_line),
    ),
    Call(
        "reduce, a monoid that raises",
        lambda x, **kw: dc.reduce(x, RAISING, axis=0, **kw),
        partial(limited, partial(np.max, axis=0)),
        may_raise=True,
    ),
    Call(
        "scan, a monoid that raises",
        lambda x, **kw: dc.scan(x, RAISING, axis=0, **kw),
        partial(limited, np.maximum.accumulate),
        may_raise=True,
    ),
    Call("several in one graph", standardised_ours, standardised, lazy=True),
]

"""What is called, and what NumPy makes of the same array."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from support.clusters import HALVES, affine_of_line, along

import dask_coop as dc
from dask_coop.cluster.futures import client_of

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
        Whether it takes no engine: it is always lazy, or several functions in one graph.
    is_index : bool
        Whether the result is the index of an element, of all as one line.
    may_raise : bool
        Whether it raises of some arrays; what kernels combine never does.
    is_exact : bool
        Whether last digits matter to it, so that it is not called of what was rounded before.
    has_nan : bool
        Whether the result may have NaN, so that other functions are not called of it.
    """

    name: str
    ours: Callable[..., Any]
    numpy: Callable[[Any], Any]
    lazy: bool = False
    is_index: bool = False
    may_raise: bool = False
    is_exact: bool = False
    has_nan: bool = False


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


def fifths(x: Any) -> Any:
    return np.arange(math.prod(x.shape)).reshape(x.shape) % 5


def means(host: Any) -> Any:
    labels = fifths(host)
    return np.array([host[labels == k].mean() for k in range(5)])


def medians(host: Any) -> Any:
    labels = thirds(host)
    return np.stack([np.median(host[..., labels == k], -1) for k in range(3)], -1)


def group_sums(host: Any) -> Any:
    found = np.empty_like(host, host.cumsum().dtype)
    for k in range(3):
        at = thirds(host) == k
        found[..., at] = host[..., at].cumsum(-1)
    return found


def windows(of: Callable[..., Any], host: Any) -> Any:
    """Apply a function to windows of three along the first axis; the first two are not full."""
    full = of(np.lib.stride_tricks.sliding_window_view(host, 3, 0), axis=-1)
    return np.concatenate([np.full((2, *host.shape[1:]), np.nan), full])


def gaps(x: Any) -> Any:
    """Return an array in memory with NaN where elements are negative."""
    import dask.array as da

    return client_of([x]).persist(da.where(x < 0, np.nan, x))


def filled(host: Any) -> Any:
    """Fill NaN with what is before it along the first axis, as Python does it."""
    found = np.where(host < 0, np.nan, host)
    for i in range(1, len(found)):
        found[i] = np.where(np.isnan(found[i]), found[i - 1], found[i])
    return found


def faded(host: Any) -> Any:
    """Return weighted means along the first axis, of weights that halve with each step back."""
    found = np.empty(host.shape)
    above, below = np.zeros(host.shape[1:]), 0.0
    for i, x in enumerate(host):
        above, below = x + above / 2, 1 + below / 2
        found[i] = above / below
    return found


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
    # Labels of all elements, which of large arrays are data beside the chunks.
    Call(
        "groupby_reduce, mean of all axes",
        lambda x, **kw: dc.groupby_reduce(x, fifths(x), func="mean", **kw)[0],
        means,
    ),
    Call(
        "groupby_reduce, median",
        lambda x, **kw: dc.groupby_reduce(x, thirds(x), func="median", axis=-1, **kw)[0],
        medians,
    ),
    Call(
        "groupby_scan",
        lambda x, **kw: dc.groupby_scan(x, thirds(x), func="cumsum", **kw),
        group_sums,
        has_nan=True,
    ),
    Call("median", partial(dc.median, axis=0), partial(np.median, axis=0)),
    Call(
        "quantile",
        lambda x, **kw: dc.quantile(x, [0.1, 0.75], axis=-1, **kw),
        lambda a: np.quantile(a, [0.1, 0.75], axis=-1),
    ),
    Call("topk", lambda x, **kw: dc.topk(x, 4, **kw), lambda a: np.sort(a)[..., :-5:-1]),
    Call("unique", dc.unique, np.unique, lazy=True, is_exact=True),
    Call(
        "move_mean",
        lambda x: dc.move_mean(x, 3, axis=0),
        partial(windows, np.mean),
        lazy=True,
    ),
    Call(
        "move_max, centred",
        lambda x: dc.move_max(x, 3, 1, axis=0, center=True),
        lambda a: windows(np.max, np.pad(a, [(1, 1)] + [(0, 0)] * (a.ndim - 1), "edge"))[2:],
        lazy=True,
    ),
    Call("ffill", lambda x, **kw: dc.ffill(gaps(x), 0, **kw), filled, has_nan=True),
    Call(
        "bfill",
        lambda x, **kw: dc.bfill(gaps(x), 0, **kw),
        lambda a: filled(a[::-1])[::-1],
        has_nan=True,
    ),
    Call("ewm_mean", partial(dc.ewm_mean, axis=0, alpha=0.5), faded),
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

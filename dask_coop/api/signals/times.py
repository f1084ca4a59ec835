"""Exponentially weighted means of samples at uneven times, as pandas' ``ewm(times=...)``.

A complex element has a sample and the factor by which weights decay since the sample before it. The
states are those of `algebra.fills`. An adjusted mean's is the mean, its weight, and how weights
decay up to the last valid element and behind it. Other means are ``l m + (1 - l) x``, with l what
is left of the mean m of older elements at the valid element x.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from dask.array.core import Array, asanyarray, concatenate, map_blocks
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.algebra.fills import LEAST, weighted_mean
from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import State
from dask_coop.api.arguments import placed_along, rechunk
from dask_coop.api.monoids.monoid import Monoid
from dask_coop.api.paired.average import require_unmasked
from dask_coop.chunks.dtypes import casts, declared_by


def _lift_adjusted(x: Any) -> State:
    valid = x.real == x.real
    return np.where(valid, x.real, 0.0), valid.astype("f8"), x.imag, np.ones_like(x.real)


def _lift_recursive(x: Any) -> State:
    valid, nothing = x.real == x.real, np.zeros_like(x.real)
    weight = valid.astype("f8")
    return np.where(valid, x.real, 0.0), weight, nothing, x.imag, weight


def _combine_recursive(a: State, b: State) -> State:
    with np.errstate(all="ignore"):
        before = np.maximum(a[4] * b[3], LEAST)
        offset = b[1] * (before * a[2] + (1 - before) * b[0]) + b[2]
        both = a[0], np.maximum(a[1] * (before * b[1]), LEAST), offset, a[3], b[4]
    first, last = (*b[:3], a[3] * b[3], b[4]), (*a[:4], before)
    fields = zip(first, last, both, strict=True)
    return tuple(choose(a[1] == 0, x, choose(b[1] == 0, y, z)) for x, y, z in fields)


#: The mean, by whether it is adjusted.
MEANS = {
    True: Monoid(
        "timed_mean",
        weighted_mean(0.5, True, False).combine,
        (0, 0, 1, 1),
        [(name, "f8") for name in ("mean", "weight", "decay", "gap")],
        lift=_lift_adjusted,
        finalize=weighted_mean(0.5, True, False).results,
        cuda={
            "lift": "{x.re == x.re ? x.re : 0., x.re == x.re ? 1. : 0., x.im, 1.}",
            "combine": """
                double between = a.gap * b.decay;
                if (a.weight == 0) return {b.mean, b.weight, a.decay * between, b.gap};
                if (b.weight == 0) return {a.mean, a.weight, a.decay, between};
                double before = fmax(a.weight * between, __longlong_as_double(1));
                double weight = before + b.weight;
                double both = (before * a.mean + b.weight * b.mean) / weight;
                double mean = a.mean == b.mean ? a.mean : both;
                return {mean, weight, a.decay * between, b.gap};
            """,
        },
        check=False,
    ),
    False: Monoid(
        "timed_recursive_mean",
        _combine_recursive,
        (0, 0, 0, 1, 0),
        [(name, "f8") for name in ("first", "shared", "offset", "lead", "weight")],
        lift=_lift_recursive,
        finalize=weighted_mean(0.5, False, False).results,
        cuda={
            "lift": """
                double some = x.re == x.re ? 1. : 0.;
                return {some > 0 ? x.re : 0., some, 0., x.im, some};
            """,
            "combine": """
                if (a.shared == 0) return {b.first, b.shared, b.offset, a.lead * b.lead, b.weight};
                double before = fmax(a.weight * b.lead, __longlong_as_double(1));
                if (b.shared == 0) return {a.first, a.shared, a.offset, a.lead, before};
                double offset = b.shared * (before * a.offset + (1 - before) * b.first) + b.offset;
                double shared = fmax(a.shared * (before * b.shared), __longlong_as_double(1));
                return {a.first, shared, offset, a.lead, b.weight};
            """,
        },
        check=False,
    ),
}


def with_decays(
    name: str, x: Array, axis: int, times: Any, halflife: Any, kept: float, ignore_na: bool
) -> Array:
    """Return complex elements: those of `x`, and the decay of weights since the ones before them.

    Parameters
    ----------
    name : str
        The public function.
    x : dask.array.Array
    axis : int
        Not negative.
    times, halflife
        As for `ewm_mean`.
    kept : float
        The fraction of a weight that is left after `halflife`.
    ignore_na : bool
        Whether weights decay at elements other than NaN only.
    """
    require_unmasked(name, "x", x)
    at = asanyarray(times)
    if at.shape != (x.shape[axis],) or at.dtype.kind not in "Miuf":
        raise ValueError(
            f"{name} needs a date or a number in times for each of {x.shape[axis]} elements along "
            f"axis {axis}, got shape {at.shape} of {at.dtype}"
        )
    unit = _duration(name, halflife) if at.dtype.kind == "M" else halflife
    if isinstance(unit, bool | str | timedelta) or unit is None or not unit > unit * 0:
        raise ValueError(
            f"halflife of {name} must be above 0, a duration for dates, got {halflife!r}"
        )
    if not is_dask_collection(times) and not (np.asarray(times) == np.asarray(times)).all():
        raise ValueError(f"times of {name} must not be missing")
    steps = (at[1:] - at[:-1]) / unit
    decays = concatenate([(at[:1] - at[:1]) / unit + 1, kept**steps])
    decays = placed_along(rechunk(decays, (x.chunks[axis],)), (axis,), x.ndim)
    options = {
        "ignore_na": ignore_na,
        "dtype": "c16",
        "meta": chunks.zeros_like(x._meta, np.dtype("c16")),
    }
    return map_blocks(_beside_decays, x, decays, **options, **declared_by(x), token=f"{name}-pairs")


def _duration(name: str, halflife: Any) -> Any:
    """Return the half-life of dates as NumPy has it."""
    if isinstance(halflife, str):
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise TypeError(
                f"halflife of {name} is a string, which needs pandas; pass a numpy.timedelta64"
            ) from error
        halflife = pandas.Timedelta(halflife)
    if not isinstance(halflife, timedelta | np.timedelta64):
        raise TypeError(
            f"halflife of {name} must be a duration, as times are dates, got {halflife!r}"
        )
    return np.timedelta64(halflife)


@casts
def _beside_decays(x: Any, decays: Any, ignore_na: bool) -> Any:
    decays = chunks.asarray(decays, chunks.kind(x))
    pairs = np.empty_like(x, "c16")
    pairs.real = x
    pairs.imag = np.where(x == x, decays, 1.0) if ignore_na else decays
    return pairs

"""Hypothesis strategies for axes and options of scans, and the measure that judges floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from dask_coop.testing import LARGE, Chunked, arrays, chunkings, elements, shapes

__all__ = ["LARGE", "Chunked", "arrays", "chunkings", "elements", "shapes"]

BOOL = ["?"]
INTS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f2", "f4", "f8"]
COMPLEX = ["c8", "c16"]
REAL = BOOL + INTS + FLOATS
NUMBERS = REAL + COMPLEX

#: For a test of many cases: each draws half of the examples that a test has otherwise.
FEWER = settings(max_examples=settings().max_examples // 2)


def exactly_representable(dtype: str, output: str) -> list[float]:
    """Return values whose sums no dtype has to round, and that casts do not push out of range."""
    values = [0, 1, 2, 3]
    fractions = [0.5, 1.5] if np.dtype(dtype).kind in "fc" else []
    negative = np.dtype(dtype).kind not in "bu" and np.dtype(output).kind not in "bu"
    return values + fractions + [-v for v in values + fractions if negative]


def axes(ndim: int) -> st.SearchStrategy[int | tuple[int, ...] | None]:
    """None, one axis or a tuple of some, in any order, counted from either end."""
    if ndim == 0:
        return st.sampled_from([None, ()])
    one = st.integers(-ndim, ndim - 1)
    return st.none() | one | st.lists(one, max_size=ndim, unique_by=lambda a: a % ndim).map(tuple)


@st.composite
def reducible(draw: st.DrawFn, **kwargs: Any) -> tuple[Chunked, Any]:
    """An array with chunks and an `axis` argument for it."""
    case = draw(arrays(**kwargs))
    return case, draw(axes(case.array.ndim))


@st.composite
def scannable(draw: st.DrawFn, **kwargs: Any) -> tuple[Chunked, int | None]:
    """An array with chunks and one axis of it, or None."""
    case = draw(arrays(**kwargs))
    ndim = case.array.ndim
    return case, draw(st.none() | st.integers(-ndim, ndim - 1) if ndim else st.none())


@st.composite
def scan_options(draw: st.DrawFn, case: Chunked, axis: int | None) -> dict[str, Any]:
    """Keywords of a scan, with NumPy's arrays for segments, of the elements or of one line."""
    exclusive, reverse, initial = draw(
        st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(lambda o: not (o[0] and o[2]))
    )
    method = draw(st.sampled_from(["reduce-then-scan", "sequential", "recompute"]))
    options = {"exclusive": exclusive, "reverse": reverse, "include_initial": initial}
    shape = case.array.shape
    line = (case.array.size if axis is None else shape[axis],)
    sides = draw(st.sampled_from([None, shape, line]))
    if sides is None:
        return {**options, "method": method}
    spread = np.random.default_rng(draw(st.integers(0, 999)))
    heads = spread.random(sides) < draw(st.sampled_from([0, 0.02, 0.3, 1]))
    return {**options, "method": method, "segments": heads}


def assert_near(actual: Any, exact: Any, slack: Any = 0, ulps: float = 1) -> None:
    """Hold `actual` to `exact` (longdouble) up to `slack` and some ulps of its own dtype.

    NaN and infinities, those that the dtype overflows to included, must be the same.
    """
    actual, exact = np.asarray(actual), np.asarray(exact)
    if actual.dtype.kind == "c":
        assert_near(actual.real, exact.real, slack, ulps)
        assert_near(actual.imag, exact.imag, slack, ulps)
        return
    with np.errstate(all="ignore"):
        rounded = exact.astype(actual.dtype)
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(actual[~finite], rounded[~finite])
        excess = np.abs(actual - exact) - slack
        error = np.max(excess / np.spacing(np.abs(rounded)), where=finite, initial=0)
    assert error <= ulps, f"{error} ulp off (at most {ulps}): {actual!r} is not {rounded!r}"


def wide(x: Any) -> Any:
    """Return `x` in the widest floats, where sums of narrower ones are as good as exact."""
    return x.astype("G" if x.dtype.kind == "c" else "g")


def slack(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the error bound of summing `x` in float64 in any order: ``n * eps * sum(abs(x))``.

    NaN and infinities add nothing: they cover up the rounding of what comes after, not before.
    """
    parts = [np.abs(part) for part in (wide(x).real, wide(x).imag)]
    sizes = sum(np.where(np.isfinite(part), part, 0) for part in parts)
    return x.size * np.finfo("f8").eps * sizes.sum(axis, keepdims=keepdims)

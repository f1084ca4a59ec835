"""Hypothesis strategies for arrays x chunks x axes, and the measure by which floats are judged.

An array is a palette of a few drawn values, spread over a drawn shape by a drawn seed: as many
elements as a kernel's tail needs, for the price of a few draws, and it still shrinks to one value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

BOOL = ["?"]
INTS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f2", "f4", "f8"]
COMPLEX = ["c8", "c16"]
REAL = BOOL + INTS + FLOATS
NUMBERS = REAL + COMPLEX

#: For a test of many cases: each draws a third of the examples that a test has otherwise.
FEWER = settings(max_examples=settings().max_examples // 3)

#: Sums of thousands of such float64 stay finite whatever their order, and so do their squares.
LARGE = 1e150


class Chunked(NamedTuple):
    """An array and the chunks to cut it into."""

    array: Any
    chunks: tuple[tuple[int, ...], ...]


def shapes(min_dims: int = 0, max_dims: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with odd sides and empty ones, the more dimensions the smaller."""
    sides = {1: st.integers(0, 70) | st.just(1025), 2: st.integers(0, 19)}
    dims = st.integers(min_dims, max_dims)
    return dims.flatmap(lambda n: st.tuples(*[sides.get(n, st.integers(0, 5))] * n))


@st.composite
def cuts(draw: st.DrawFn, n: int, pieces: int) -> tuple[int, ...]:
    """At most `pieces` lengths, some of them zero, that add up to `n`."""
    places = sorted(draw(st.lists(st.integers(0, n), max_size=pieces - 1)))
    return tuple(b - a for a, b in zip([0, *places], [*places, n], strict=True))


@st.composite
def chunkings(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Irregular chunks of `shape`; lines long enough for two levels of a spine in one dimension."""
    pieces = {1: 40, 2: 7, 3: 4}.get(len(shape), 3)
    return tuple(draw(cuts(n, pieces)) for n in shape)


def elements(dtype: Any, special: bool = True) -> st.SearchStrategy[Any]:
    """Values of `dtype`: with `special` NaN and infinities too; extremes and -0.0 in any case."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        parts = elements(dtype.type(0).real.dtype, special)
        return st.builds(complex, parts, parts)
    if dtype.kind == "f":
        top = LARGE if dtype.itemsize == 8 else float(np.finfo(dtype).max)
        finite = st.floats(-top, top, width=dtype.itemsize * 8) | st.just(-0.0)
        return finite | st.sampled_from([np.nan, np.inf, -np.inf]) if special else finite
    return hnp.from_dtype(dtype)


@st.composite
def arrays(
    draw: st.DrawFn,
    dtypes: list[str] = NUMBERS,
    shape: st.SearchStrategy[tuple[int, ...]] | None = None,
    values: st.SearchStrategy[Any] | None = None,
    special: bool = True,
) -> Chunked:
    """Arrays with chunks: of one of `dtypes`, of `values` that fit it, in C or Fortran order."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    sides = draw(shapes() if shape is None else shape)
    palette = draw(
        st.lists(elements(dtype, special) if values is None else values, min_size=1, max_size=12)
    )
    spread = np.random.default_rng(draw(st.integers(0, 999)))
    array = np.array(palette).astype(dtype)[spread.integers(len(palette), size=sides)]
    order = draw(st.sampled_from("CF"))
    return Chunked(np.asarray(array, order=order), draw(chunkings(sides)))


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

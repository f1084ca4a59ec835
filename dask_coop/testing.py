"""Test code that uses chunked arrays: Hypothesis strategies, and a check of monoids.

It needs Hypothesis (``pip install hypothesis``)::

    from cloudpickle import dumps, loads
from hypothesis import given
    from dask_coop.testing import arrays, check_monoid

    @given(arrays(["f4", "f8"]))
    def test_my_function(x):
        np.testing.assert_allclose(my_function(x.lazy()), numpys_function(x.array))

    def test_my_monoid():
        check_monoid(my_monoid, arrays(["f8"], special=False), expected=np.hypot.reduce)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from cloudpickle import dumps, loads
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dask_coop

__all__ = ["Chunked", "arrays", "check_monoid", "chunkings", "elements", "shapes"]

#: Bool, integers, floats and complex numbers.
NUMBERS = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")

#: Sums of thousands of such float64 stay finite in any order, and so do their squares.
LARGE = 1e150


class Chunked(NamedTuple):
    """An array and the chunks to cut it into.

    Attributes
    ----------
    array : numpy.ndarray
    chunks : tuple of tuple of int
    """

    array: Any
    chunks: tuple[tuple[int, ...], ...]

    def lazy(self) -> da.Array:
        """Return the array as a Dask array with these chunks."""
        return da.from_array(self.array, chunks=self.chunks)


def shapes(min_dims: int = 0, max_dims: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Strategy of shapes with odd sides and empty ones.

    Parameters
    ----------
    min_dims, max_dims : int
        The numbers of dimensions. The more there are, the smaller are the sides.
    """
    sides = {1: st.integers(0, 70) | st.just(1025), 2: st.integers(0, 19)}
    dims = st.integers(min_dims, max_dims)
    return dims.flatmap(lambda n: st.tuples(*[sides.get(n, st.integers(0, 5))] * n))


@st.composite
def _cuts(draw: st.DrawFn, n: int, most: int) -> tuple[int, ...]:
    """At most `most` lengths, some of them zero, that add up to `n`."""
    ends = sorted(draw(st.lists(st.integers(0, n), max_size=most - 1)))
    return tuple(b - a for a, b in zip([0, *ends], [*ends, n], strict=True))


@st.composite
def chunkings(draw: st.DrawFn, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Strategy of chunks of an array, irregular and with empty ones.

    Parameters
    ----------
    shape : sequence of int
        One dimension has up to 40 chunks, more dimensions fewer each.
    """
    most = {1: 40, 2: 7, 3: 4}.get(len(shape), 3)
    return tuple(draw(_cuts(n, most)) for n in shape)


def elements(dtype: Any, special: bool = True) -> st.SearchStrategy[Any]:
    """Strategy of elements of a dtype, extremes and -0.0 included.

    Parameters
    ----------
    dtype : dtype
    special : bool
        Whether floats may be NaN and infinite.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        components = elements(dtype.type(0).real.dtype, special)
        return st.builds(complex, components, components)
    if dtype.kind == "f":
        top = LARGE if dtype.itemsize == 8 else float(np.finfo(dtype).max)
        finite = st.floats(-top, top, width=dtype.itemsize * 8) | st.just(-0.0)
        return finite | st.sampled_from([np.nan, np.inf, -np.inf]) if special else finite
    return hnp.from_dtype(dtype)


@st.composite
def arrays(
    draw: st.DrawFn,
    dtypes: Sequence[str] = NUMBERS,
    shape: st.SearchStrategy[tuple[int, ...]] | None = None,
    values: st.SearchStrategy[Any] | None = None,
    special: bool = True,
) -> Chunked:
    """Strategy of arrays with chunks, in C or Fortran order.

    An array is a palette of a few drawn values, spread over a drawn shape by a drawn seed. So
    arrays of thousands of elements are drawn fast, and shrink to one value.

    Parameters
    ----------
    dtypes : sequence of str
        One of them is drawn.
    shape : strategy, optional
        Of shapes; by default `shapes()`.
    values : strategy, optional
        Of values that fit all `dtypes`; by default `elements`.
    special : bool
        Whether floats may be NaN and infinite.
    """
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    sides = draw(shapes() if shape is None else shape)
    palette = draw(
        st.lists(elements(dtype, special) if values is None else values, min_size=1, max_size=12)
    )
    spread = np.random.default_rng(draw(st.integers(0, 999)))
    array = np.array(palette).astype(dtype)[spread.integers(len(palette), size=sides)]
    order: Any = draw(st.sampled_from("CF"))
    return Chunked(np.asarray(array, order=order), draw(chunkings(sides)))


def check_monoid(
    monoid: dask_coop.Monoid,
    cases: st.SearchStrategy[Chunked],
    expected: Callable[[Any], Any] | None = None,
    *,
    rtol: float = 1e-6,
    atol: float = 0.0,
    examples: int = 100,
) -> None:
    """Check that results of a monoid do not depend on chunks, on arrays like those you have.

    `Monoid` tries its laws on a few numbers. This function reduces and scans drawn arrays: in
    chunks, in one chunk and after pickling. The last element of a scan has to be the result of the
    reduction.

    Parameters
    ----------
    monoid : Monoid
    cases : strategy of Chunked
        Such as ``arrays(["f8"], special=False)``. All elements of an array are taken as one line.
    expected : callable, optional
        Returns the result for all elements of a NumPy array, such as ``np.add.reduce``.
    rtol, atol : float
        How far floats may differ, as in `numpy.testing.assert_allclose`.
    examples : int
        The number of arrays.

    Raises
    ------
    AssertionError
        If results differ; Hypothesis prints the smallest array that it finds.
    """
    loaded = loads(dumps(monoid))

    def same(actual: Any, wanted: Any, words: str) -> None:
        for a, b in zip(_several(actual), _several(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol, atol, err_msg=words)

    @settings(max_examples=examples, deadline=None)
    @given(cases)
    def check(case: Chunked) -> None:
        line = case.array.reshape(-1)
        chunked, whole = (da.from_array(line, chunks=c) for c in (_of_line(case), (line.shape,)))
        result = _computed(dask_coop.reduce(chunked, monoid))
        same(result, _computed(dask_coop.reduce(whole, monoid)), "reduce in one chunk differs")
        same(result, _computed(dask_coop.reduce(chunked, loaded)), "after pickling reduce differs")
        if expected is not None:
            same(result, expected(line), "reduce differs from `expected`")
        scanned = _computed(dask_coop.scan(chunked, monoid))
        same(scanned, _computed(dask_coop.scan(whole, monoid)), "scan in one chunk differs")
        if line.size:
            last = tuple(values[-1] for values in _several(scanned))
            same(last, _several(result), "the last element of scan is not the result of reduce")

    check()


def _of_line(case: Chunked) -> tuple[tuple[int, ...]]:
    """Return chunks of all elements in a line, cut where the first axis is cut."""
    if not case.chunks:
        return ((1,),)
    inner = math.prod(case.array.shape[1:])
    return (tuple(size * inner for size in case.chunks[0]),)


def _several(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _computed(result: Any) -> Any:
    values = da.compute(*_several(result), scheduler="synchronous")
    return values if isinstance(result, tuple) else values[0]

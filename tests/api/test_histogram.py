"""histogram against numpy.histogram: the same counts, to the last sample, for any chunking."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import assume, given
from hypothesis import strategies as st
from support.calls import noting
from support.strategies import FEWER, FLOATS, INTS, REAL, Chunked, arrays, assert_near

import dask_coop as dc

ONE_LINE = st.tuples(st.integers(1, 90))
RARELY = st.integers(0, 4).map(lambda n: n == 4)


def numpys(array: Any, *args: Any, **kwargs: Any) -> Any:
    """Return numpy.histogram's result; bool it would convert itself, but with a warning."""
    with np.errstate(all="ignore"):
        return np.histogram(array.view("u1") if array.dtype == bool else array, *args, **kwargs)


def compare(xp: Any, case: Chunked, *args: Any, **kwargs: Any) -> None:
    """Hold counts, edges and their dtypes to NumPy's."""
    counts, edges = dc.histogram(to_chunks(xp, *case), *args, **kwargs)
    expected, expected_edges = numpys(case.array, *args, **kwargs)
    assert counts.dtype == expected.dtype
    assert edges.dtype == expected_edges.dtype
    np.testing.assert_array_equal(to_numpy(xp, counts), expected)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.asarray(edges), expected_edges)


@st.composite
def limits(draw: st.DrawFn) -> tuple[float, float]:
    """Ranges that hold some of the samples, or none, or have no width."""
    one = st.integers(-1000, 1000) | st.floats(-300, 300) | st.sampled_from([0, 0.1, 0.5, 255])
    low, high = draw(one), draw(one)
    return (min(low, high), max(low, high))


def near(dtype: Any) -> st.SearchStrategy[Any]:
    """Samples that ranges of a few hundred hold some of, NaN and infinities among them."""
    match np.dtype(dtype).kind:
        case "f":
            return st.floats(-400, 400) | st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 0.1])
        case "i":
            return st.integers(-128, 127)
        case "u":
            return st.integers(0, 255)
    return st.booleans()


def compare_or_refuse(xp: Any, case: Chunked, *args: Any) -> None:
    """Hold the result to NumPy's, or the error where NumPy has one, at the latest when computed."""
    try:
        numpys(case.array, *args)
    except ValueError as error:
        refusal = str(error)
    except IndexError:
        assume(False)  # NumPy's own arithmetic on edges overflows in float16
    else:
        compare(xp, case, *args)
        return
    words = "Too many bins" if "Too many bins" in refusal else "not finite"
    with pytest.raises(ValueError, match=words):
        to_numpy(xp, dc.histogram(to_chunks(xp, *case), *args)[0])


@pytest.mark.parametrize("dtype", REAL)
@FEWER
@given(data=st.data(), bins=st.integers(1, 300))
def test_counts_in_a_given_range_are_numpys(xp: Any, dtype: str, data: Any, bins: int) -> None:
    case = data.draw(arrays(dtypes=[dtype], values=near(dtype)))
    compare_or_refuse(xp, case, bins, data.draw(limits()))


@pytest.mark.parametrize("dtype", REAL)
@FEWER
@given(data=st.data(), bins=st.integers(1, 300))
def test_counts_in_the_range_of_the_data_are_numpys(
    xp: Any, dtype: str, data: Any, bins: int
) -> None:
    compare_or_refuse(xp, data.draw(arrays(dtypes=[dtype], special=data.draw(RARELY))), bins)


@pytest.mark.parametrize("dtype", REAL)
@FEWER
@given(data=st.data())
def test_counts_between_explicit_edges_are_numpys(xp: Any, dtype: str, data: Any) -> None:
    case = data.draw(arrays(dtypes=[dtype], values=near(dtype)))
    edge = st.integers(-300, 300) | st.floats(-300, 300)
    edges = sorted(data.draw(st.lists(edge, min_size=2, max_size=20)))
    if data.draw(st.booleans()):
        edges = sorted([*edges, *edges[::2]])  # empty bins between equal edges
    compare(xp, case, edges)
    compare(xp, case, np.array(edges))
    compare(xp, case, np.array(edges, "f4"))


def beside(edges: Any, dtype: str) -> Any:
    """Return the samples at which a histogram with these edges goes wrong first."""
    at = edges.astype(dtype)
    return np.concatenate([at, np.nextafter(at, at.dtype.type(np.inf)), np.nextafter(at, -at - 1)])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("bins", "inside"),
    [(10, (0, 1)), (7, (-0.3, 0.4)), (100, (0.1, 100.1)), (256, (0, 255)), (3, (1e-3, 2e-3))],
)
def test_samples_on_the_edges_and_an_ulp_beside_them(
    xp: Any, dtype: str, bins: int, inside: Any
) -> None:
    edges = np.histogram_bin_edges(np.empty(0, dtype), bins, inside)
    samples = beside(edges, dtype)
    compare(xp, Chunked(samples, 5), bins, inside)
    compare(xp, Chunked(samples, 5), edges)
    compare(xp, Chunked(samples, 5), edges.astype("f8"))
    compare(xp, Chunked(samples, 5), bins)


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_samples_are_counted_to_the_last(xp: Any, dtype: str) -> None:
    # 65,536 is the block in which numpy.histogram works; chunks of 30,011 straddle its blocks.
    samples = np.random.default_rng(3).normal(0, 50, 200_001).astype(dtype)
    case = Chunked(samples, 30_011)
    compare(xp, case, 1000, (-100, 100))
    compare(xp, case, 1000)
    compare(xp, case, np.geomspace(0.1, 200, 700))


def test_more_bins_than_samples(xp: Any) -> None:
    samples = np.random.default_rng(4).random(999, "f4")
    compare(xp, Chunked(samples, 100), 300_000, (0, 1))


def test_the_last_bin_is_closed_and_no_other(xp: Any) -> None:
    x = to_chunks(xp, np.array([0.0, 1, 1, 2, 3, 3, 3]), 2)
    for args in ((3, (0, 3)), ([0, 1, 2, 3],)):
        np.testing.assert_array_equal(to_numpy(xp, dc.histogram(x, *args)[0]), [1, 2, 4])


def test_nan_is_dropped_where_the_range_is_given(xp: Any) -> None:
    samples = np.array([np.nan, 0.5, np.nan, 2.5, np.inf, -np.inf])
    x = to_chunks(xp, samples, 2)
    np.testing.assert_array_equal(to_numpy(xp, dc.histogram(x, 3, (0, 3))[0]), [1, 0, 1])
    np.testing.assert_array_equal(to_numpy(xp, dc.histogram(x, [0, 1, 2, 3])[0]), [1, 0, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_range_that_is_not_finite_is_refused_when_it_is_found(xp: Any, bad: float) -> None:
    x = to_chunks(xp, np.array([1, 2, 3, bad, 4], "f4"), 2)
    counts, edges = dc.histogram(x, 4)
    for lazy in (counts, edges):
        with pytest.raises(ValueError, match=r"autodetected range of \[.*(nan|inf).*\] is not"):
            lazy.compute(scheduler="synchronous")


@pytest.mark.parametrize("value", [2, 0, -3.5])
def test_equal_limits_are_widened_by_a_half(xp: Any, value: float) -> None:
    case = Chunked(np.full(7, value, "f4"), 3)
    compare(xp, case, 4)
    compare(xp, case, 4, (value, value))
    assert np.asarray(dc.histogram(to_chunks(xp, *case), 4)[1])[0] == value - 0.5


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
def test_empty_arrays_have_bins_and_no_counts(xp: Any, shape: Any) -> None:
    case = Chunked(np.empty(shape, "f4"), tuple((n,) for n in shape))
    for args in ((4,), (4, (2, 3)), ([1.5, 2, 7],)):
        compare(xp, case, *args)


def test_empty_weights_in_other_chunks(xp: Any) -> None:
    x, w = to_chunks(xp, np.empty(0), ((0, 0),)), to_chunks(xp, np.empty(0, "f4"), ((0,),))
    result = dc.histogram(x, 3, (0, 1), weights=w)[0]
    np.testing.assert_array_equal(to_numpy(xp, result), np.zeros(3, "f4"))


def test_a_zero_dimensional_array_is_one_sample(xp: Any) -> None:
    compare(xp, Chunked(np.array(2.5), ()), 4)
    compare(xp, Chunked(np.array(2.5), ()), 4, (0, 3))
    compare(xp, Chunked(np.array(2.5), ()), np.array([1.0]))


@pytest.mark.parametrize("dtype", INTS)
def test_integers_as_far_apart_as_they_can_be(xp: Any, dtype: str) -> None:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    samples = np.array([low + (high - low) * i // 49 for i in range(50)], dtype)
    compare(xp, Chunked(samples, 7), 9)
    compare(xp, Chunked(samples, 7), 9, (low // 2, high // 2))


WEIGHTS = st.sampled_from([*INTS, *FLOATS, "?"])


@given(data=st.data())
def test_weights_are_summed_by_bin(xp: Any, data: Any) -> None:
    samples = data.draw(arrays(dtypes=["f4", "i4", "u1"], values=st.integers(0, 9)))
    kind = data.draw(WEIGHTS)
    weights = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 2, samples[0].shape)
    weights = weights.astype(kind)
    chunks = tuple((n,) for n in weights.shape)
    bins, inside = data.draw(st.sampled_from([(4, (1, 8)), (5, None), ([0, 2, 3, 9], None)]))
    x, w = to_chunks(xp, *samples), to_chunks(xp, weights, chunks)
    result, edges = dc.histogram(x, bins, inside, weights=w)
    assert result.dtype == weights.dtype
    expected, expected_edges = np.histogram(
        samples.array, bins, inside, weights=weights.astype("f8")
    )
    np.testing.assert_array_equal(to_numpy(xp, result), expected.astype(kind))
    np.testing.assert_array_equal(np.asarray(edges), expected_edges)


@pytest.mark.parametrize("dtype", INTS)
def test_integer_weights_wrap(xp: Any, dtype: str) -> None:
    # Exact in float64, too: NumPy sums weights in it.
    top = min(int(np.iinfo(dtype).max), 2**40)
    weights = np.full(10, top, dtype)
    x = to_chunks(xp, np.zeros(10), 3)
    result = dc.histogram(x, 1, (0, 1), weights=to_chunks(xp, weights, 3))[0]
    np.testing.assert_array_equal(to_numpy(xp, result), [weights.sum(dtype=dtype)])


def test_integer_weights_beyond_float64_are_exact(xp: Any) -> None:
    weights = np.array([2**53 + 1, 1, -(2**53)])
    x = to_chunks(xp, np.zeros(3), 3)
    for bins in (1, [0, 1]):
        result = dc.histogram(x, bins, (0, 1), weights=to_chunks(xp, weights, 3))[0]
        assert to_numpy(xp, result) == 2


def exact_weights(samples: Any, weights: Any, edges: Any) -> Any:
    """Sum weights by bin in rational numbers."""
    sums = [Fraction(0)] * (len(edges) - 1)
    for place, weight in zip(np.searchsorted(edges, samples, "right") - 1, weights, strict=True):
        last = place == len(sums)  # only a sample on the last edge, which is closed
        sums[place - 1 if last else place] += Fraction(float(weight))
    return np.array([np.longdouble(float(s)) for s in sums])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bins", [8, np.linspace(0, 1, 9), [0, 0.1, 0.7, 0.75, 1]])
def test_float_weights_round_once(xp: Any, dtype: str, bins: Any) -> None:
    generate = np.random.default_rng(5)
    samples, weights = generate.random(3000), generate.random(3000).astype(dtype)
    x, w = to_chunks(xp, samples, 271), to_chunks(xp, weights, 3000)
    result, edges = dc.histogram(x, bins, (0, 1), weights=w)
    assert result.dtype == dtype
    exact = exact_weights(samples, weights, edges)
    assert_near(to_numpy(xp, result), exact, slack=3000 * np.finfo("f8").eps * exact)


@pytest.mark.parametrize("bins", [4, [0, 1, 2, 3, 4]])
def test_a_heavy_bin_leaves_the_others_alone(xp: Any, bins: Any) -> None:
    samples = np.array([0.5, 1.5, 2.5, 3.5])
    for heavy in (1e20, np.inf, np.nan):
        weights = np.array([1.0, heavy, 1.0, 2.0])
        x, w = (to_chunks(xp, array, 4) for array in (samples, weights))
        result = dc.histogram(x, bins, (0, 4), weights=w)[0]
        np.testing.assert_array_equal(to_numpy(xp, result), weights)


@given(case=arrays(dtypes=REAL, shape=ONE_LINE, values=st.integers(0, 1)), bins=st.integers(1, 9))
def test_densities_are_numpys(xp: Any, case: Chunked, bins: int) -> None:
    x = to_chunks(xp, *case)
    for kwargs in ({"bins": bins}, {"bins": bins, "range": (0, 3)}, {"bins": [0, 0.25, 1, 4]}):
        density, edges = dc.histogram(x, density=True, **kwargs)
        expected, _ = numpys(case.array, density=True, **kwargs)
        assert density.dtype == "f8"
        actual = to_numpy(xp, density)
        np.testing.assert_allclose(actual, expected, rtol=1e-15)
        np.testing.assert_allclose((actual * np.diff(np.asarray(edges, "f8"))).sum(), 1, rtol=1e-6)


def test_density_of_weights(xp: Any) -> None:
    samples, weights = np.arange(6.0), np.array([1, 0, 2, 5, 0, 1], "f4")
    x, w = to_chunks(xp, samples, 4), to_chunks(xp, weights, 3)
    result, _ = dc.histogram(x, [0, 1, 4, 5], weights=w, density=True)
    expected, _ = np.histogram(samples, [0, 1, 4, 5], weights=weights, density=True)
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=1e-15)


def test_counts_and_edges_come_out_of_one_read(xp: Any) -> None:
    x, reads = noting(to_chunks(xp, np.arange(10.0), 5))
    dask.compute(*dc.histogram(x, 4), scheduler="synchronous")
    assert len(reads) == 2


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.2.0", reason="NumPy takes them")
def test_too_many_bins_are_refused_in_numpys_words(xp: Any) -> None:
    x = to_chunks(xp, np.linspace(0, 1, 9, dtype="f2"), 3)
    with pytest.raises(ValueError, match="Too many bins for data range"):
        dc.histogram(x, 30_000, (0, 1))
    with pytest.raises(ValueError, match="Too many bins for data range"):
        to_numpy(xp, dc.histogram(x, 30_000)[0])


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((0,), ValueError, "`bins` must be positive"),
        ((-2,), ValueError, "`bins` must be positive"),
        ((2.5,), TypeError, "`bins` must be an integer, a string, or an array"),
        (([3, 2, 1],), ValueError, "`bins` must increase monotonically"),
        (([[1, 2], [3, 4]],), ValueError, "`bins` must be 1d"),
        ((3, (2, 1)), ValueError, "max must be larger than min in range parameter"),
        ((3, (0, np.nan)), ValueError, r"supplied range of \[0, nan\] is not finite"),
        ((3, (0, np.inf)), ValueError, r"supplied range of \[0, inf\] is not finite"),
        ((3, None, True), ValueError, "normed is not supported; use density=True"),
    ],
)
def test_bad_bins_are_refused_in_numpys_words(args: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        dc.histogram(da.ones(4, chunks=2), *args)


@pytest.mark.parametrize("rule", ["auto", "fd", "stone", "magic"])
@pytest.mark.parametrize("inside", [None, (0, 1)])
def test_rules_for_bins_are_refused_and_not_guessed(rule: str, inside: Any) -> None:
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=rule):
        dc.histogram(da.ones(400, chunks=200), rule, inside)


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"same shape as a: \(3,\) and \(4,\)"):
        dc.histogram(da.ones(4), 3, weights=da.ones(3))


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]", "m8[s]", "g", "c8"])
def test_other_dtypes_are_refused_by_name_where_dask_is_no_help(dtype: str) -> None:
    x = da.from_array(np.zeros(4, dtype), chunks=2)
    with pytest.raises(TypeError, match="histogram does not take samples of dtype") as caught:
        dc.histogram(x, 3, (0, 1), flow=True)
    assert str(np.dtype(dtype)) in str(caught.value)
    if dtype != "c8":
        with pytest.raises(TypeError, match="histogram with weights does not take dtype"):
            dc.histogram(da.ones(4, chunks=2), 3, (0, 1), weights=x, flow=True)


def test_other_kinds_of_chunk_are_refused_by_name_where_dask_is_no_help() -> None:
    class Quantity(np.ndarray[Any, Any]):
        pass

    plain = da.ones(4, chunks=2)
    strange = da.Array(plain.dask, plain.name, plain.chunks, meta=np.empty(0).view(Quantity))
    for kwargs in ({"a": strange}, {"a": plain, "weights": strange}):
        with pytest.raises(TypeError, match="Quantity"):
            dc.histogram(**kwargs, bins=3, range=(0, 1), flow=True)


def test_other_byte_orders_are_read() -> None:
    samples = np.array([1.5, -2.25, 8.0, 3.0], ">f4")
    compare(np, Chunked(samples, 3), 4)
    compare(np, Chunked(samples, 3), 4, (0, 5))
    compare(np, Chunked(samples.astype(">i2"), 3), [0, 2, 8])


@pytest.mark.parametrize("x", [[1, 2, 3], np.float32(3.5), np.arange(6).reshape(2, 3), 7])
def test_what_is_not_a_dask_array_becomes_one(x: Any) -> None:
    counts, edges = dc.histogram(x, 3)
    assert isinstance(counts, da.Array)
    expected, expected_edges = np.histogram(x, 3)
    np.testing.assert_array_equal(counts.compute(), expected)
    np.testing.assert_array_equal(edges.compute(), expected_edges)

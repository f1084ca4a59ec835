"""xhistogram's histograms, with ours in their place: the same results, or xhistogram's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import upstream
from conftest import to_chunks
from support.calls import refuse

import dask_coop as dc
from dask_coop.api import xhistogram_calls

core: Any = pytest.importorskip("xhistogram.core")
named: Any = pytest.importorskip("xhistogram.xarray")
xr: Any = pytest.importorskip("xarray")

# NumPy warns of a density without samples, too.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(invalid value|divide by zero) encountered in divide"
)

EDGES = np.array([-3.0, -1, 0, 0.5, 2])
DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "u8", "u1", "?"]


def fail(*args: Any, **kwargs: Any) -> Any:
    """Take the place of xhistogram's own function of blocks."""
    raise AssertionError("xhistogram counted")


def draw_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    kind = np.dtype(dtype).kind
    x = rng.integers(0 if kind in "ub" else -4, 2 if kind == "b" else 5, shape).astype(dtype)
    if kind == "f":
        x = np.where(rng.random(shape) < 0.5, x + rng.normal(size=shape), x).astype(dtype)
        x[rng.random(shape) < 0.2] = np.nan
        x[rng.random(shape) < 0.02] = np.inf
    return x


def draw_edges(rng: np.random.Generator, dtype: str) -> Any:
    edges = np.sort(rng.integers(-4, 5, int(rng.integers(2, 9))))
    if dtype[0] != "u" and rng.random() < 0.3:
        return edges
    edges = edges / rng.choice([1, 2, 3])
    return edges.astype("f4") if rng.random() < 0.3 else edges


def draw_call(rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
    """Draw arrays, some of them smaller or in memory, and options."""
    shape = tuple(int(n) for n in rng.integers(1, 9, int(rng.integers(1, 4))))
    count = int(rng.choice([1, 1, 2, 2, 3]))
    dtypes = [str(rng.choice(DTYPES)) for _ in range(count)]
    arrays: list[Any] = []
    for dtype in dtypes:
        own = tuple(n if rng.random() < 0.8 or not arrays else 1 for n in shape)
        x = draw_array(rng, own, dtype)
        chunks = tuple(int(rng.integers(1, n + 1)) for n in own)
        arrays.append(x if arrays and rng.random() < 0.2 else da.from_array(x, chunks=chunks))
    edges = [draw_edges(rng, dtype) for dtype in dtypes]
    options: dict[str, Any] = {"bins": edges}
    if rng.random() < 0.6:
        axes = rng.permutation(len(shape))[: int(rng.integers(1, len(shape) + 1))]
        options["axis"] = int(axes[0]) - len(shape) if len(axes) == 1 else [*map(int, axes)]
    if rng.random() < 0.4:
        w = draw_array(rng, shape, str(rng.choice(["f8", "f4", "i8", "i1", "u2", "?"])))
        w = np.nan_to_num(w, posinf=1)
        options["weights"] = da.from_array(w, chunks=2) if rng.random() < 0.7 else w
    # xhistogram raises for densities of three arrays.
    options["density"] = bool(count < 3 and rng.random() < 0.3)
    options["block_size"] = [None, "auto", 1, 3][rng.integers(4)]
    if rng.random() < 0.2:
        options["range"] = [(0, 1), [(0, 1)] * count][rng.integers(2)]
    return arrays, options


@pytest.mark.parametrize("seed", range(60))
def test_results_are_those_of_xhistogram(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, options = draw_call(np.random.default_rng(seed))
    plain, edges = core.histogram(*arrays, **options)
    expected = plain.compute(scheduler="sync")
    with dc.installed(), dask.config.set(scheduler=refuse):
        found, own = core.histogram(*arrays, **options)
    assert own is edges is options["bins"]
    assert (found.shape, found.dtype, found.chunks) == (plain.shape, plain.dtype, plain.chunks)
    monkeypatch.setattr(core, "_bincount", fail)
    counts = found.compute(scheduler="sync")
    assert counts.dtype == expected.dtype
    weights = options.get("weights")
    if weights is None or weights.dtype.kind != "f":
        np.testing.assert_array_equal(counts, expected)
    else:
        # xhistogram rounds the sum of each chunk to float32.
        bound = 1e-5 if weights.dtype == "f4" else 1e-13
        np.testing.assert_allclose(counts, expected, rtol=bound, atol=bound)


def test_chunks_of_any_kind_are_counted(xp: Any) -> None:
    rng = np.random.default_rng(3)
    x, y, w = rng.normal(size=(9, 8)), rng.normal(size=(9, 8)).astype("f4"), rng.random((9, 8))
    arrays, lazy = (x, y, w), [to_chunks(xp, each, (4, 3)) for each in (x, y, w)]
    for count in (1, 2):
        for options in ({}, {"axis": 1}, {"density": True}, {"axis": 0, "density": True}):
            for weights in (None, 2):
                pairs = [
                    function(
                        *parts[:count],
                        bins=EDGES,
                        weights=None if weights is None else parts[weights],
                        **options,
                    )[0]
                    for function, parts in (
                        (core.histogram, arrays),
                        (xhistogram_calls.histogram, lazy),
                    )
                ]
                found = pairs[1].compute()
                found = found if isinstance(found, np.ndarray) else found.get()
                np.testing.assert_allclose(found, pairs[0], rtol=1e-12)


def test_histograms_of_labels_are_served_and_keep_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = xr.DataArray(
        da.from_array(np.random.default_rng(0).normal(size=(20, 6)), chunks=(7, 4)),
        {"t": np.arange(20), "y": ("y", np.arange(6) * 10, {"units": "m"}), "mean": 3.0},
        ("t", "y"),
        "t2m",
        {"units": "K"},
    )
    expected = named.histogram(x.compute(), bins=[EDGES], dim=["t"])
    monkeypatch.setattr(core, "_bincount", fail)
    with dc.installed():
        found = named.histogram(x, bins=[EDGES], dim=["t"])
    assert dask.is_dask_collection(found)
    xr.testing.assert_identical(found.compute(), expected)
    assert found.name == "histogram_t2m"
    assert found.t2m_bin.attrs == {"units": "K"}
    assert dc.explain(found)[-1].served_by == "dask_coop"
    with pytest.raises(AssertionError, match="xhistogram counted"):
        named.histogram(x, bins=[EDGES], dim=["t"]).compute(scheduler="sync")


def test_names_that_were_imported_before_are_served_too() -> None:
    from xhistogram.xarray import histogram

    before = core.histogram
    x = xr.DataArray(ONES, name="x")
    with dc.installed():
        found = histogram(x, bins=EDGES)
        assert core.histogram is not before
    assert dc.explain(found)[-1].served_by == "dask_coop"
    assert core.histogram is before


ONES = da.ones((4, 4), chunks=2)
MASKED = da.from_array(np.ma.array(np.arange(4.0), mask=[0, 1, 0, 0]), chunks=2, asarray=False)
TIMES = da.from_array(np.arange(4).astype("M8[s]"), chunks=2)

#: Calls that are left to xhistogram, and what is said of them.
LEFT: list[tuple[Callable[[Any], Any], str]] = [
    (lambda histogram: histogram(ONES, bins=3), "bins of Dask arrays are edges"),
    (lambda histogram: histogram(ONES, bins="auto"), "bins of Dask arrays are edges"),
    (lambda histogram: histogram(ONES, bins=[0, 1]), "bins of Dask arrays are edges"),
    (lambda histogram: histogram(ONES, bins=[[0, 1]]), "edges are arrays of one dimension"),
    (lambda histogram: histogram(ONES, ONES, bins=[EDGES]), "bins of Dask arrays are edges"),
    (lambda histogram: histogram(ONES, bins=EDGES[::-1].copy()), "monotonic"),
    (lambda histogram: histogram(ONES, ONES, bins=EDGES[::-1].copy(), axis=0), "monotonic"),
    (lambda histogram: histogram(ONES, bins=EDGES[:1]), "two numbers or more"),
    (lambda histogram: histogram(ONES, bins=EDGES, range=(0, 1, 2)), "range is a pair"),
    (lambda histogram: histogram(ONES, bins=EDGES, axis=2), "axis must name axes"),
    (lambda histogram: histogram(ONES, bins=EDGES, axis=(0, 0)), "duplicate"),
    (lambda histogram: histogram(ONES, bins=EDGES, block_size=-1), "block_size is"),
    (lambda histogram: histogram(ONES, bins=EDGES, weights=ONES * 1j), "weights are real"),
    (lambda histogram: histogram(ONES * 1j, bins=EDGES), "samples of dtype complex128"),
    (lambda histogram: histogram(ONES.astype("u8"), bins=np.arange(3)), "in two ways"),
    (lambda histogram: histogram(MASKED, bins=EDGES), "counts what is masked"),
    (lambda histogram: histogram(TIMES, bins=np.arange(3).astype("M8[s]")), "edges are integers"),
    (lambda histogram: histogram(xr.DataArray(ONES), bins=EDGES), "not DataArray"),
    (lambda histogram: histogram(ONES, ONES[:3], bins=EDGES), "not add up"),
]


def outcome(call: Callable[[Any], Any]) -> Any:
    """Return the type of what a call raises, at once or when it is computed, or its results."""
    try:
        counts, edges = call(core.histogram)
        (counts,) = dask.compute(counts, scheduler="sync")
    except Exception as error:
        return type(error)
    return type(counts), np.asarray(counts).tolist(), np.asarray(edges).tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "why"), LEFT)
def test_what_is_not_served_is_xhistograms(call: Callable[[Any], Any], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        call(xhistogram_calls.histogram)
    plain = outcome(call)
    with dc.installed():
        assert outcome(call) == plain


def test_arrays_in_memory_are_left_alone() -> None:
    x = np.random.default_rng(0).normal(size=(5, 4))
    before = core.histogram(x, bins=10, axis=1)
    with dc.installed():
        counts, (edges,) = core.histogram(x, bins=10, axis=1)
    np.testing.assert_array_equal(counts, before[0])
    np.testing.assert_array_equal(edges, before[1][0])


def test_three_arrays_have_a_density() -> None:
    x = np.random.default_rng(0).normal(size=(3, 50))
    with dc.installed():
        density, _ = core.histogram(*da.from_array(x, chunks=20), bins=EDGES, density=True)
    np.testing.assert_allclose(density, np.histogramdd(x.T, [EDGES] * 3, density=True)[0])


def test_its_own_tests_pass_with_ours_installed(tmp_path: Path) -> None:
    suite = upstream.SUITES["xhistogram"]
    if not (suite.find(tmp_path) / suite.tests[0]).exists():
        pytest.skip("xhistogram is installed without its tests")
    # `make upstream` runs all of them.
    assert upstream.check(replace(suite, every=8), tmp_path, [])


def test_arrays_of_dask_array_are_served() -> None:
    dask_array = pytest.importorskip("dask_array")
    x = np.random.default_rng(0).normal(size=(9, 4))
    lazy = dask_array.from_array(x, chunks=3)
    with dc.installed():
        counts, _ = core.histogram(lazy, lazy, bins=EDGES, axis=1)
    assert isinstance(counts, dask_array.Array)
    np.testing.assert_array_equal(counts, core.histogram(x, x, bins=EDGES, axis=1)[0])

"""dask.dataframe: series, frames and indices, and the arrays that they make."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import boost_histogram as bh
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from support.calls import refuse

import dask_coop as dc

RNG = np.random.default_rng(8)
HOST = pd.DataFrame(
    {
        "x": RNG.normal(size=300),
        "y": RNG.normal(size=300).astype("f4"),
        "n": RNG.integers(0, 9, 300),
        "w": RNG.random(300),
        "text": ["a", "b"] * 150,
    }
)


def frame() -> Any:
    return dd.from_pandas(HOST, npartitions=4)


def known(column: Any) -> da.Array:
    array: da.Array = column.to_dask_array(lengths=True)
    assert not any(math.isnan(n) for n in array.shape)
    return array


def unknown(column: Any) -> da.Array:
    array: da.Array = column.to_dask_array()
    assert math.isnan(array.shape[0])
    return array


def itself(column: Any) -> Any:
    return column


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "histogram": (lambda f, of: dc.histogram(of(f.x), 12), lambda f: np.histogram(f.x, 12)),
    "a range": (
        lambda f, of: dc.histogram(of(f.x), 5, (-1, 1)),
        lambda f: np.histogram(f.x, 5, (-1, 1)),
    ),
    "weights from another column": (
        lambda f, of: dc.histogram(of(f.x), 12, weights=of(f.w)),
        lambda f: np.histogram(f.x, 12, weights=f.w),
    ),
    "reproducible weights": (
        lambda f, of: dc.histogram(of(f.x), 12, weights=of(f.w), reproducible=True),
        lambda f: np.histogram(f.x, 12, weights=f.w),
    ),
    "density": (
        lambda f, of: dc.histogram(of(f.x), 12, density=True),
        lambda f: np.histogram(f.x, 12, density=True),
    ),
    "a rule": (
        lambda f, of: dc.histogram(of(f.x), "sturges"),
        lambda f: np.histogram(f.x, "sturges"),
    ),
    "histogram2d of two columns": (
        lambda f, of: dc.histogram2d(of(f.x), of(f.n), 5, weights=of(f.w)),
        lambda f: np.histogram2d(f.x, f.n, 5, weights=f.w),
    ),
    "histogramdd of a frame": (
        lambda f, of: dc.histogramdd(of(f[["x", "w"]]), 4)[0],
        lambda f: np.histogramdd(f[["x", "w"]].to_numpy(), 4)[0],
    ),
    "histogramdd of columns": (
        lambda f, of: dc.histogramdd([of(f.x), of(f.w)], 4)[0],
        lambda f: np.histogramdd(f[["x", "w"]].to_numpy(), 4)[0],
    ),
    "bincount": (lambda f, of: dc.bincount(of(f.n)), lambda f: np.bincount(f.n)),
    "weighed bincount": (
        lambda f, of: dc.bincount(of(f.n), weights=of(f.w)),
        lambda f: np.bincount(f.n, f.w),
    ),
    "quantile": (
        lambda f, of: dc.quantile(of(f.x), [0.1, 0.5]),
        lambda f: np.quantile(f.x, [0.1, 0.5]),
    ),
    "median of float32": (lambda f, of: dc.median(of(f.y)), lambda f: np.median(f.y)),
    "describe": (
        lambda f, of: [getattr(dc.describe(of(f.x)), key) for key in ("count", "mean", "std")],
        lambda f: [len(f), np.mean(f.x), np.std(f.x.to_numpy())],
    ),
    "means of columns": (
        lambda f, of: dc.mean(of(f[["x", "w"]]), axis=0),
        lambda f: f[["x", "w"]].to_numpy().mean(0),
    ),
    "where": (
        lambda f, of: dc.sum(of(f.x), where=of(f.n > 4)),
        lambda f: f.x[f.n > 4].sum(),
    ),
    "cumsum": (lambda f, of: dc.cumsum(of(f.x)), lambda f: f.x.cumsum()),
    "select": (lambda f, of: dc.select(of(f.x), of(f.n > 4)), lambda f: f.x[f.n > 4]),
    "unique": (lambda f, of: dc.unique(of(f.n)), lambda f: np.unique(f.n)),
    "rows that are left": (
        lambda f, of: dc.histogram(of(f[f.n > 4].x), 12, weights=of(f[f.n > 4].w)),
        lambda f: np.histogram(f.x[f.n > 4], 12, weights=f.w[f.n > 4]),
    ),
    "index": (lambda f, of: dc.sum(of(f.index)), lambda f: f.index.to_numpy().sum()),
}


@pytest.mark.parametrize("of", [known, unknown, itself])
@pytest.mark.parametrize("name", CALLS)
def test_columns_are_taken_like_arrays(name: str, of: Any) -> None:
    call, expected = CALLS[name]
    lazy = call(frame(), of)
    for part in lazy if isinstance(lazy, tuple | list) else [lazy]:
        assert isinstance(part, da.Array | np.ndarray)
    found, expected = dask.compute(lazy)[0], expected(HOST)
    pairs = zip(found, expected, strict=True) if isinstance(lazy, tuple | list) else None
    for mine, theirs in pairs or [(found, expected)]:
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.parametrize("of", [known, unknown, itself])
def test_histograms_with_axes_are_filled_by_columns(of: Any) -> None:
    f, axes = frame(), [bh.axis.Regular(5, -1, 1), bh.axis.Integer(0, 9)]
    found = dc.to_hist([of(f.x), of(f.n)], axes, weights=of(f.w)).compute()
    expected = bh.Histogram(*axes, storage=bh.storage.Weight())
    expected.fill(HOST.x, HOST.n, weight=HOST.w)
    np.testing.assert_allclose(found.values(flow=True), expected.values(flow=True), rtol=1e-12)
    np.testing.assert_allclose(found.variances(flow=True), expected.variances(flow=True))


def test_nothing_is_computed_before() -> None:
    with dask.config.set(scheduler=refuse):
        counts, _ = dc.histogram(frame().x, 12, weights=frame().w)
    assert dask.is_dask_collection(counts)
    assert counts.shape == (12,)


def test_what_holds_no_numbers_is_refused_with_what_to_do() -> None:
    with (
        pytest.warns(UserWarning, match="to object dtype"),
        pytest.raises(dc.Refused, match=r"dtype object.*\.astype\('f8'\) makes numbers"),
    ):
        dc.histogram(frame().text, 3)


# Descriptions of columns, held to those of pandas.

MIXED = HOST.assign(
    holes=np.where(HOST.x > 1, np.nan, HOST.x),
    nullable=pd.array(np.where(HOST.n > 6, None, HOST.n), "Int64"),
    when=pd.Timestamp("2001-01-01") + pd.to_timedelta(HOST.n, unit="h"),
    kind=pd.Categorical(HOST.text),
)


@pytest.mark.parametrize("lazy", [True, False])
def test_each_column_of_a_frame_is_described(lazy: bool) -> None:
    rows: Any = dd.from_pandas(MIXED, npartitions=4) if lazy else MIXED
    with dask.config.set(scheduler=refuse):
        described = dc.describe(rows)
    theirs = MIXED.describe()
    assert [*described] == [*theirs.columns]
    found = described.compute()
    n = theirs.loc["count"]
    for name in described:
        one = found[name]
        assert type(one) is dc.Description
        assert one.count == n[name]
        assert one.nans == len(MIXED) - n[name]
        for statistic in ("min", "max", "mean"):
            if name == "when":
                seconds = abs(pd.Timestamp(getattr(one, statistic)) - theirs.loc[statistic, name])
                assert seconds < pd.Timedelta("1us")
            else:
                assert getattr(one, statistic) == pytest.approx(theirs.loc[statistic, name], 1e-6)
        if name != "when":
            assert one.std * np.sqrt(n[name] / (n[name] - 1)) == pytest.approx(
                theirs.loc["std", name], 1e-6
            )
    table = described.to_frame()
    assert [*table.columns] == [*theirs.columns]
    assert table.loc["mean", "holes"] == pytest.approx(theirs.loc["mean", "holes"])


def test_descriptions_print_as_a_table() -> None:
    described = dc.describe({"x": da.arange(4, chunks=2), "day": np.array(["2001-01-01"], "M8[D]")})
    assert repr(described).splitlines()[0].split() == ["statistic", "x", "day"]
    assert "int64" in repr(described)
    lines = repr(described.compute()).splitlines()
    assert lines[1].split() == ["count", "4", "1"]
    assert lines[5].split() == ["sum", "6"]
    assert "<table" in described.compute()._repr_html_()


def test_columns_without_an_order_are_left_out() -> None:
    assert [*dc.describe(frame())] == ["x", "y", "n", "w"]
    with pytest.raises(TypeError, match=r"no column of numbers or dates among \['text'\]"):
        dc.describe(frame()[["text"]])


def test_a_frame_along_an_axis_is_the_array_of_its_values() -> None:
    mean = dc.describe(frame()[["x", "w"]], axis=0).mean
    np.testing.assert_allclose(mean, HOST[["x", "w"]].mean())


@pytest.mark.parametrize(
    "call",
    [
        lambda s: dc.describe(s).mean,
        lambda s: dc.nanmax(s),
        lambda s: dc.histogram(s, 5, weights=s + 9)[0],
        lambda s: dc.cumsum(s),
        lambda s: dc.quantile(s, 0.3),
        lambda s: dc.groupby_reduce(s, HOST.n, func="mean")[0],
    ],
)
def test_series_of_pandas_are_arrays(call: Any) -> None:
    found, expected = dask.compute(call(HOST.x), call(HOST.x.to_numpy()))
    np.testing.assert_array_equal(found, expected)


def test_frames_of_pandas_are_arrays_of_their_values() -> None:
    found = dc.mean(HOST[["x", "w"]], axis=0)
    np.testing.assert_allclose(found, HOST[["x", "w"]].mean())

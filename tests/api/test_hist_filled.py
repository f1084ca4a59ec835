"""to_hist of axes and storages that chunks fill themselves: as one ``fill`` of the whole arrays."""

from __future__ import annotations

from typing import Any

import boost_histogram as bh
import dask
import dask.array as da
import dask.dataframe as dd
import hist
import numpy as np
import pandas as pd
import pytest
from conftest import to_chunks
from distributed import Client
from support.calls import refuse

import dask_coop as dc

RNG = np.random.default_rng(6)
N = 600
NUMBERS = RNG.normal(size=N) * 3
WHOLE = RNG.integers(-3, 9, N)
WORDS = np.array(["muon", "tau", "electron", "none"])[RNG.integers(0, 4, N)]
WEIGHTS = RNG.integers(1, 9, N)

POW = bh.axis.transform.Pow(2)
#: Axes, and samples that they take.
AXES: dict[str, tuple[Any, Any]] = {
    "turning": (bh.axis.Regular(7, -1, 1.3, circular=True), NUMBERS),
    "turning of integers": (bh.axis.Integer(0, 4, circular=True), WHOLE),
    "turning between edges": (bh.axis.Variable([0, 0.3, 2], circular=True), NUMBERS),
    "whole categories": (bh.axis.IntCategory([7, -2, 3]), WHOLE),
    "whole categories alone": (bh.axis.IntCategory([7, -2, 3], overflow=False), WHOLE),
    "growing whole categories": (bh.axis.IntCategory([], growth=True), WHOLE),
    "words": (bh.axis.StrCategory(["tau", "muon"]), WORDS),
    "words alone": (bh.axis.StrCategory(["tau", "muon"], overflow=False), WORDS),
    "growing words": (bh.axis.StrCategory(["tau"], growth=True), WORDS),
    "growing integers": (bh.axis.Integer(1, 2, growth=True), WHOLE),
    # Widths that growth adds up exactly.
    "growing": (bh.axis.Regular(4, 0, 1, growth=True), NUMBERS),
    "power": (bh.axis.Regular(5, 1, 3, transform=POW), np.abs(NUMBERS)),
    "descending": (bh.axis.Regular(5, 3, 1), NUMBERS),
    "to infinity": (bh.axis.Variable([0, 1, np.inf], overflow=False), NUMBERS),
    "hist's words": (hist.axis.StrCategory([], growth=True, name="lepton", label="l"), WORDS),
}
STORAGES = {
    "Double": bh.storage.Double,
    "Int64": bh.storage.Int64,
    "Unlimited": bh.storage.Unlimited,
    "Weight": bh.storage.Weight,
    "Mean": bh.storage.Mean,
    "WeightedMean": bh.storage.WeightedMean,
}


def filled(bins: Any, *samples: Any, **given: Any) -> Any:
    """Return what the histogram's own ``fill`` makes of a copy."""
    found = bins.copy()
    bh.Histogram.fill(found, *samples, **given)
    return found


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    assert [*found.axes] == [*expected.axes]
    assert found.storage_type is expected.storage_type
    a, b = np.asarray(found.view(flow=True)), np.asarray(expected.view(flow=True))
    for name in a.dtype.names or [...]:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunks", [N, 70])
@pytest.mark.parametrize("name", AXES)
def test_counts_are_those_of_one_fill(name: str, chunks: int) -> None:
    axis, x = AXES[name]
    found = dc.to_hist(da.from_array(x, chunks=chunks), axis).compute()
    empty = hist.Hist(axis) if "hist" in name else bh.Histogram(axis)
    expected = filled(empty, x)
    assert found == expected
    assert [getattr(a, "name", "") for a in found.axes] == [
        getattr(a, "name", "") for a in expected.axes
    ]


@pytest.mark.parametrize("storage", STORAGES)
def test_storages_have_weights_and_means(storage: str) -> None:
    axes = [bh.axis.Regular(4, -3, 3), bh.axis.StrCategory([], growth=True)]
    empty = bh.Histogram(*axes, storage=STORAGES[storage]())
    lazy = [da.from_array(x, chunks=70) for x in (NUMBERS, WORDS)]
    means = storage.endswith("Mean")
    values = {"values": da.from_array(NUMBERS**2, chunks=90)} if means else {}
    samples = {"sample": NUMBERS**2} if means else {}
    found = dc.to_hist(lazy, empty, **values).compute()
    same(found, filled(empty, NUMBERS, WORDS, **samples))
    found = dc.to_hist(lazy, found, da.from_array(WEIGHTS, chunks=50), **values).compute()
    twice = filled(empty, NUMBERS, WORDS, **samples)
    same(found, filled(twice, NUMBERS, WORDS, weight=WEIGHTS, **samples))


def test_axes_alone_get_a_storage_of_means(xp: Any) -> None:
    axis = bh.axis.Regular(5, -3, 3)
    x, v, w = (to_chunks(xp, each, 80) for each in (NUMBERS, NUMBERS**2, WEIGHTS))
    expected = bh.Histogram(axis, storage=bh.storage.Mean())
    same(dc.to_hist(x, axis, values=v).compute(), filled(expected, NUMBERS, sample=NUMBERS**2))
    expected = bh.Histogram(axis, storage=bh.storage.WeightedMean())
    expected = filled(expected, NUMBERS, weight=WEIGHTS, sample=NUMBERS**2)
    same(dc.to_hist(x, axis, w, values=v).compute(), expected)


def test_chunks_of_any_kind_turn(xp: Any) -> None:
    axis = bh.axis.Regular(7, -1, 1.3, circular=True)
    assert dc.to_hist(to_chunks(xp, NUMBERS, 70), axis).compute() == filled(
        bh.Histogram(axis), NUMBERS
    )


@pytest.mark.parametrize("dtype", ["f4", "f2", "i8", "u1", "u8", "?"])
def test_samples_of_any_dtype_turn(dtype: str) -> None:
    axis = bh.axis.Regular(3, 0, 2.5, circular=True)
    x = np.abs(WHOLE).astype(dtype)
    found = dc.to_hist(da.from_array(x, chunks=70), axis).compute()
    assert found == filled(bh.Histogram(axis), x.astype("f8"))


def test_axes_of_all_kinds_grow_at_once() -> None:
    axes = [
        bh.axis.Regular(4, 0, 1, growth=True),
        bh.axis.StrCategory([], growth=True),
        bh.axis.Regular(3, 0, 3, growth=True),
        bh.axis.Integer(0, 1, growth=True),
    ]
    empty = bh.Histogram(*axes, storage=bh.storage.Weight())
    columns = NUMBERS, WORDS, NUMBERS * 2, WHOLE
    lazy = [da.from_array(x, chunks=7) for x in columns]
    found = dc.to_hist(lazy, empty, WEIGHTS).compute()
    assert found == filled(empty, *columns, weight=WEIGHTS)


def test_what_is_not_finite_is_beside_an_axis_that_has_grown() -> None:
    # boost-histogram counts these in a bin, if they come before the axis grows.
    x = np.array([np.nan, np.inf, -np.inf, 0.1, 3.3, np.nan, -0.7])
    axis = bh.axis.Regular(2, 0, 1, growth=True)
    found = dc.to_hist(da.from_array(x, chunks=3), axis).compute()
    finite = filled(bh.Histogram(axis), x[np.isfinite(x)])
    assert found == filled(finite, x[~np.isfinite(x)])
    assert found.view(flow=True)[[0, -1]].tolist() == [1, 3]


def test_masked_samples_count_nowhere() -> None:
    x = np.ma.array(WHOLE, mask=WHOLE == 3)
    lazy = da.from_array(x, chunks=70, asarray=False)
    axis = bh.axis.IntCategory([3, 4])
    assert dc.to_hist(lazy, axis).compute() == filled(bh.Histogram(axis), x.compressed())


def test_several_dimensions_and_columns_of_one_array() -> None:
    x = NUMBERS.reshape(100, 6)
    axis = bh.axis.Regular(5, 0, 2, circular=True)
    lazy = da.from_array(x, chunks=(30, 4))
    assert dc.to_hist(lazy, axis).compute() == filled(bh.Histogram(axis), NUMBERS)
    found = dc.to_hist(lazy[:, :2], [axis, axis]).compute()
    assert found == filled(bh.Histogram(axis, axis), x[:, 0], x[:, 1])


def test_what_is_filled_stays_lazy_and_keeps_its_keys() -> None:
    x = da.from_array(WORDS, chunks=70)
    axis = bh.axis.StrCategory([], growth=True)
    with dask.config.set(scheduler=refuse):
        first, again = dc.to_hist(x, axis), dc.to_hist(x, axis)
    assert first.key == again.key
    assert dc.to_hist(x, bh.axis.StrCategory(["tau"], growth=True)).key != first.key


def test_many_chunks_go_up_a_tree() -> None:
    x = da.from_array(WORDS, chunks=1)
    axis = bh.axis.StrCategory([], growth=True)
    lazy = dc.to_hist(x, axis)
    tasks = [task for key, task in dict(lazy.dask).items() if "to_hist" in str(key)]
    assert max(len(task.dependencies) for task in tasks) == 16
    assert lazy.compute() == filled(bh.Histogram(axis), WORDS)


def test_hists_keep_their_class_names_and_labels() -> None:
    empty = hist.Hist(
        hist.axis.Regular(2, 0, 1, growth=True, name="x"), name="events", label="per bin"
    )
    found = dc.to_hist(da.from_array(NUMBERS, chunks=70), empty).compute()
    assert (found.name, found.label, found.axes[0].name) == ("events", "per bin", "x")
    assert found == filled(empty, NUMBERS)


def test_missing_words_are_refused() -> None:
    x = da.from_array(np.array(["tau", None, "tau"], object), chunks=2)
    with pytest.raises(TypeError, match="what is missing is none; fill or drop it first"):
        dc.to_hist(x, bh.axis.StrCategory(["tau"])).compute(scheduler="sync")


# Frames.

FRAME = pd.DataFrame(
    {"pt": NUMBERS, "lepton": WORDS, "jets": WHOLE, "w": WEIGHTS, "energy": NUMBERS**2}
)
AXES_BY_NAME = (
    hist.axis.StrCategory([], growth=True, name="lepton"),
    hist.axis.Regular(8, -4, 4, name="pt"),
    hist.axis.IntCategory([0, 1, 2], name="jets"),
)


@pytest.mark.parametrize("kind", ["dask", "pandas", "mapping"])
@pytest.mark.parametrize("cls", [hist.Hist, hist.NamedHist])
def test_columns_are_found_by_the_names_of_axes(kind: str, cls: Any) -> None:
    frame: Any = FRAME
    if kind == "dask":
        frame = dd.from_pandas(FRAME, npartitions=4)
    elif kind == "mapping":
        frame = {name: da.from_array(FRAME[name].to_numpy(), chunks=90) for name in FRAME}
    empty = cls(*AXES_BY_NAME, storage=hist.storage.Weight())
    with dask.config.set(scheduler=refuse):
        lazy = dc.to_hist(frame, empty, "w")
    expected = filled(empty, WORDS, NUMBERS, WHOLE, weight=WEIGHTS)
    assert lazy.compute(scheduler="sync") == expected
    means = cls(*AXES_BY_NAME[:2], storage=hist.storage.WeightedMean())
    found = dc.to_hist(frame, means, frame["w"], values="energy").compute()
    same(found, filled(means, WORDS, NUMBERS, weight=WEIGHTS, sample=NUMBERS**2))


def test_axes_without_names_take_columns_in_their_order() -> None:
    frame = dd.from_pandas(FRAME[["pt", "jets"]], npartitions=3)
    axes = [bh.axis.Regular(8, -4, 4), bh.axis.Integer(0, 5)]
    assert dc.to_hist(frame, axes).compute() == filled(bh.Histogram(*axes), NUMBERS, WHOLE)


def test_nullable_and_categorical_columns_are_taken() -> None:
    frame = pd.DataFrame(
        {"x": pd.array([1, None, 3], "Int64"), "c": pd.Categorical(["a", "b", "a"])}
    )
    axes = [bh.axis.Regular(3, 0, 3, circular=True), bh.axis.StrCategory(["b", "a"])]
    found = dc.to_hist(dd.from_pandas(frame, npartitions=2), axes).compute()
    assert found == filled(bh.Histogram(*axes), np.array([1, np.nan, 3]), ["a", "b", "a"])


def test_a_cluster_fills_it_by_the_collective_engine() -> None:
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None):
        x = da.from_array(WORDS, chunks=70).persist()
        axis = bh.axis.StrCategory([], growth=True)
        found = dc.to_hist(x, axis, engine="collective")
    assert found == filled(bh.Histogram(axis), WORDS)

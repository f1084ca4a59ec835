"""Chunks of another dtype than their array declares: they become what it declares."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from conftest import to_chunks
from fuzz.case import undeclared
from graph.test_graphs import collections, numbers
from support.processes import printed

import dask_coop as dc
from dask_coop.chunks.dtypes import as_declared, casts

#: Collections that take what Dask's own operators make of the chunks, which are not converted.
OF_OPERATORS = {"masked sum", "masked mean", "cumsum of parts", "ffill", "ffill of few"}
OF_OPERATORS |= {"ffill by chain", "bfill", "bfill of parts", "ewm_mean of some", "searchsorted"}
OF_OPERATORS |= {"elements above 4", "odd elements", "flat indices", "complex weights"}
OF_OPERATORS |= {"counts of pairs", "density of pairs", "ewm_var", "line"}
OF_OPERATORS |= {"move_corr", "counts of pairs of values", "order by two keys"}
OF_OPERATORS |= {"order of a long line by two keys"}
OF_OPERATORS |= {"longest_run", "count_runs", "count_in_runs", "first_run", "last_run"}
OF_OPERATORS |= {"run_lengths", "lengths at the ends of runs", "lengths of runs within segments"}
OF_OPERATORS |= {"events start", "events length", "events sum", "labels", "number of labels"}


def declare(chunks: da.Array, dtype: Any) -> da.Array:
    """Return an array that says that its chunks are of `dtype`."""
    meta = np.zeros_like(chunks._meta, dtype)
    return chunks.map_blocks(lambda block: block, dtype=dtype, meta=meta)


def undeclared_chunks(x: da.Array) -> da.Array:
    return x.map_blocks(undeclared, dtype=x.dtype, meta=x._meta)


def own(x: da.Array) -> dict[str, da.Array]:
    return {name: lazy for name, lazy in collections(x).items() if name not in OF_OPERATORS}


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, result in found.items():
        assert result.dtype == expected[name].dtype, name
        same = (result == expected[name]) | (
            (result != result) & (expected[name] != expected[name])
        )
        if result.dtype.kind == "f":
            # Two kernels of a GPU may round differently: one multiplies and adds in one step.
            same |= np.isclose(result, expected[name], rtol=1e-15, atol=0)
        assert same.all(), name


@pytest.mark.cublas
@pytest.mark.parametrize("declared", ["f4", "i4", "i8", "u1"])
def test_every_public_function_takes_chunks_as_declared(xp: Any, declared: str) -> None:
    honest = to_chunks(xp, numbers().astype(declared), 2)
    other = undeclared_chunks(honest)
    with dask.config.set(scheduler="sync"):
        assert other.blocks[0, 0].compute().dtype != other.dtype
        expected, found = dask.compute(*map(own, (honest, other)))
    assert_alike(found, expected)


@pytest.mark.parametrize(
    ("declared", "found"), [("f8", "i8"), ("f8", "f4"), ("f8", ">f8"), ("i8", "i2"), ("f4", "O")]
)
def test_every_public_function_takes_equal_elements_of_another_dtype(
    declared: str, found: str
) -> None:
    array = numbers().astype(declared)
    other = declare(da.from_array(array.astype(found), chunks=2), declared)
    with dask.config.set(scheduler="sync"):
        found, expected = dask.compute(own(other), own(da.from_array(array, chunks=2)))
    assert_alike(found, expected)


@pytest.mark.parametrize("function", [dc.ffill, dc.bfill])
def test_what_has_no_gaps_is_declared(xp: Any, function: Any) -> None:
    other = undeclared_chunks(to_chunks(xp, numbers().astype("i4"), 2))
    filled = function(other, axis=0)
    assert other.blocks[0, 0].compute().dtype != filled.dtype
    assert filled.blocks[0, 0].compute().dtype == filled.dtype == "i4"


def test_bool_is_declared(xp: Any) -> None:
    array = numbers() > 6
    honest = to_chunks(xp, array, 2)
    other = undeclared_chunks(honest)
    numbered = to_chunks(xp, numbers(), 2)

    def results(x: da.Array) -> dict[str, da.Array]:
        names = ("any", "all", "sum", "mean", "min", "argmax", "count_nonzero", "median", "cumsum")
        names += ("unique", "sort", "flatnonzero", "norm", "cummax")
        made = {
            name: getattr(dc, name)(x, **{"axis": None} if name == "sort" else {}) for name in names
        }
        made["topk"] = dc.topk(x, 2)
        made["counts"] = dc.histogram(x, 2, (0, 3))[0]
        made["bins"] = dc.digitize(x, [0, 1, 2])
        made["isin"] = dc.isin(x, [True])
        made["select"] = dc.select(numbered, x)
        made["where"] = dc.sum(numbered, where=x)
        made["segments"] = dc.cumsum(numbered, axis=0, segments=x)
        made["labels"] = dc.groupby_reduce(numbered, x, func="sum", expected_groups=[False, True])[
            0
        ]
        made["lazy labels"] = dc.groupby_reduce(numbered, x, func="sum")[0]
        made["median"] = dc.groupby_reduce(x, np.arange(7) % 2, func="median")[0]
        made["lazy median"] = dc.groupby_reduce(numbered, x, func="median")[0]
        made["groups"] = dc.groupby_reduce(x, np.arange(7) % 2, func="any")[0]
        made["pairs by group"] = dc.groupby_reduce(numbered, np.arange(7) % 2, func="cov", y=x)[0]
        return made

    with dask.config.set(scheduler="sync"):
        expected, found = dask.compute(results(honest), results(other))
    assert_alike(found, expected)


def test_what_is_converted_goes_by_way_of_what_is_declared(xp: Any) -> None:
    honest = to_chunks(xp, numbers().astype("f4"), 2)
    integers = to_chunks(xp, numbers().astype("i4"), 2)

    def results(x: da.Array, n: da.Array) -> dict[str, da.Array]:
        truths, double = dc.isin(honest, [1, 5]), honest.astype("f8")
        return {
            "pairs": dc.histogram2d(x, double, [4, np.arange(8)])[0],
            "logaddexp": dc.reduce(n, np.logaddexp, axis=0),
            "extract": dc.extract(n, honest),
            "select": dc.select([truths, ~truths], [n, x], 0.5),
        }

    with dask.config.set(scheduler="sync"):
        other = [undeclared_chunks(x) for x in (honest, integers)]
        expected, found = dask.compute(results(honest, integers), results(*other))
    assert_alike(found, expected)


@pytest.mark.parametrize("found", ["f8", ">f4", "i8", "O"])
def test_a_median_of_large_chunks_is_that_of_the_declared_elements(found: str) -> None:
    # Compiled loops take chunks from some size on.
    array = (np.arange(80_000) % 1001).astype("f4")
    x = declare(da.from_array(array.astype(found), chunks=40_000), "f4")
    assert dc.median(x).compute() == np.median(array)
    assert dc.median(x).compute().dtype == "f4"
    assert dc.describe(x).max.compute() == 1000


def test_a_mask_that_says_bool_may_hold_floats() -> None:
    # Compiled loops take chunks from some size on.
    array, where = np.arange(80_000.0) % 7, np.arange(80_000) % 3 > 0
    x = da.from_array(array, chunks=40_000)
    mask = declare(da.from_array(where / 2, chunks=40_000), "?")
    for name in ("sum", "mean", "var", "max", "any", "nansum"):
        initial = {"initial": 0} if name == "max" else {}
        found = getattr(dc, name)(x, where=mask, **initial).compute()
        assert found == getattr(dc, name)(x, where=where, **initial).compute()


def test_quantiles_of_apply_ufunc_are_those_of_what_it_declares() -> None:
    x = xr.DataArray(np.arange(12, dtype="f4").reshape(3, 4), dims=("y", "t")).chunk(t=2)
    doubled = {"dask": "parallelized", "output_dtypes": [float]}
    z = xr.apply_ufunc(lambda block: block * np.float32(2), x, **doubled)
    with dc.installed():
        assert z.quantile(0.3).compute().item() == pytest.approx(6.6, rel=1e-15)


def test_dates_are_declared() -> None:
    array = np.arange(20, dtype="i8").view("M8[s]")
    x = declare(da.from_array(array, chunks=6), "M8[ns]")
    assert dc.max(x).compute() == np.datetime64(19, "s")
    assert dc.median(x - np.datetime64(0, "s")).compute() == np.timedelta64(9_500, "ms")
    (counts,) = dask.compute(dc.value_counts(x, n=1)[0])
    assert counts.dtype == "M8[ns]"


def test_strings_are_as_long_as_in_their_chunks() -> None:
    x = declare(da.from_array(np.array(["long", "longer", "long"]), chunks=2), "U1")
    np.testing.assert_array_equal(dc.unique(x).compute(), ["long", "longer"])


def test_masks_stay() -> None:
    array = np.ma.array([1.5, 2.5, 3.5], mask=[False, True, False])
    assert as_declared(array, np.dtype("i4")).tolist() == [1, None, 3]
    assert as_declared(np.ma.masked, np.dtype("i4")) is np.ma.masked


def test_a_block_of_the_declared_dtype_is_not_copied() -> None:
    array = np.zeros(3, ">f4")
    assert as_declared(array, np.dtype(">f4")) is array
    native = np.zeros(3, "f4")
    assert as_declared(native, np.dtype(">f4")) is native


def test_elements_that_cannot_be_converted_are_named() -> None:
    x = declare(da.from_array(np.array(["a", "b"]), chunks=1), "f8")
    message = "a chunk has dtype <U1, its array declares float64, and <U1 cannot be converted"
    with pytest.raises(TypeError, match=message):
        dc.sum(x).compute(scheduler="sync")


def test_a_function_that_casts_pickles_by_its_name() -> None:
    from dask_coop.graph import tasks

    assert pickle.loads(pickle.dumps(tasks.lift)) is tasks.lift
    assert casts(lambda a, b: (a, b))(np.zeros(1), 2, declared={0: "i4"})[0].dtype == "i4"


#: To be run where Numba compiles with checks of all indices.
CHECKED = """
import numpy as np, dask.array as da, dask_coop as dc
from dask_coop.chunks.numpy import digits
from dask_coop.algebra.digits import first_digit

x = np.arange(70_000, dtype="f4")
try:
    digits.count(x.astype("f8"), first_digit(np.dtype("f4")), None, "i8")
except TypeError as error:
    assert "float64" in str(error) and "float32" in str(error), error
else:
    raise SystemExit("another dtype is taken")
from dask_coop.chunks.numpy.loops import selection as loops
table = np.zeros(4, "i8")
try:
    loops.count(*digits._given(loops, x, first_digit(x.dtype)), table)
except IndexError:
    raise SystemExit(0)
raise SystemExit("written outside of the table")
"""


def test_compiled_loops_check_their_tables_in_debug_mode() -> None:
    printed("-c", CHECKED, NUMBA_BOUNDSCHECK=1)

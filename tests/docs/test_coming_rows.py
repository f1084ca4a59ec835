"""Every row of the tables of docs/coming.md: what is on its left gives what is on its right.

The code of a row is run as it stands on the page, on arrays with NaN and, where there are weights,
with some that have to be broadcast. What a row says in other words is written out below as `SAID`;
and where nothing can be compared, `NOT_RUN` has the reason.
"""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import coming
import dask
import dask.array as da
import dask.array.stats
import numpy as np
import pytest

import dask_coop as dc

pd = pytest.importorskip("pandas")
xr = pytest.importorskip("xarray")
pytest.importorskip("dask_coop.xarray")


class Row(NamedTuple):
    """A row of a table: its section, and its first two cells."""

    section: str
    theirs: str
    ours: str

    @property
    def key(self) -> str:
        """The first code on the left, or all of that."""
        return code(self.theirs) or self.theirs


def code(cell: str) -> str:
    """Return the first code in a cell."""
    found = re.search(r"`([^`]+)`", cell)
    return found[1] if found else ""


def rows() -> list[Row]:
    found, section = [], ""
    for line in coming.PAGE.read_text().splitlines():
        if line.startswith("## From "):
            section = line.removeprefix("## From ")
        elif line.startswith("| "):
            theirs, ours, *_ = (cell.strip() for cell in line.strip("|").split(" | "))
            found.append(Row(section, theirs, ours))
    # Each table begins with the names of its columns.
    return [row for row in found if row.ours != "here"]


class Said(NamedTuple):
    """The two expressions of a row, and one to run where the library of the first is missing."""

    theirs: str
    ours: str
    stand_in: str = ""


SAID = {
    ".mean()": Said(
        "[x.groupby('time.month').mean(), x.groupby('time.month').std()]",
        "[*x.coop.groupby_reduce('time.month', func=['mean', 'std']).data_vars.values()]",
    ),
    # At the borders only ours are something.
    "x.rolling(lat=3, lon=3, center=True).mean()": Said(
        "x.rolling(lat=3, lon=3, center=True).mean()",
        "x.coop.box_filter(lat=3, lon=3).where(x.rolling(lat=3, lon=3, center=True).count() == 9)",
    ),
    "x.to_dask_dataframe().describe()": Said(
        "[(d := x.to_dask_dataframe().describe().compute().x)['count'], d['mean'], d['min'], "
        "d['max'], d['std'] * (1 - 1 / d['count']) ** 0.5]",
        "x.coop.describe()[['count', 'mean', 'min', 'max', 'std']].to_array().values.tolist()",
    ),
    "xhistogram.core.histogram(x, bins=edges, axis=1)": Said(
        "xhistogram.core.histogram(x.data, bins=[edges], axis=1)[0]",
        "dc.histogram(x.data, bins=edges, axis=1)[0]",
    ),
    "dim=": Said(
        "histogram(x, bins=[edges], dim=['lat'], weights=w, density=True, bin_dim_suffix='_of')",
        "x.coop.histogram(bins=edges, dim=['lat'], weights=w, density=True, bin_dim_suffix='_of')",
    ),
    "dask_histogram.histogram(x, bins, range, weights=w)": Said(
        "dask_histogram.histogram(x, 5, (-2, 2), weights=w)[0]",
        "dc.histogram(x, 5, (-2, 2), weights=w)[0]",
        "np.histogram(y, 5, (-2, 2), weights=w.compute())[0]",
    ),
    "histogram=True": Said(
        "dask_histogram.histogram(x, 5, (-2, 2), weights=w, histogram=True)",
        "dc.to_hist(x, hist.axis.Regular(5, -2, 2), weights=w)",
        "boost.Histogram(axis).fill(y, weight=w.compute())",
    ),
    "dask_histogram.histogram2d": Said(
        "dask_histogram.histogram2d(x, z, bins=[edges, edges])[0]",
        "dc.histogram2d(x, z, bins=[edges, edges])[0]",
        "np.histogram2d(y, y * y, bins=[edges, edges])[0]",
    ),
    "dask_histogram.factory(x, y, axes=(ax, ay))": Said(
        "dask_histogram.factory(x, z, axes=(axis, axis))",
        "dc.to_hist([x, z], [axis, axis])",
        "boost.Histogram(axis, axis).fill(y, y * y)",
    ),
    "factory(x, histref=h)": Said(
        "dask_histogram.factory(x, histref=h)",
        "dc.to_hist(x, h)",
        "boost.Histogram(axis).fill(y)",
    ),
    "h = dask_histogram.boost.Histogram(ax); h.fill(x); h.compute()": Said(
        "dask_histogram.boost.Histogram(axis).fill(x)",
        "dc.to_hist(x, axis).compute()",
        "boost.Histogram(axis).fill(y)",
    ),
    "hist.dask.Hist": Said(
        "hist.dask.Hist(axis).fill(x)",
        "dc.to_hist(x, hist.Hist(axis))",
        "hist.Hist(axis).fill(y)",
    ),
    # A NaN stays in the running sums of SciPy, and leaves those of CuPy with its window.
    "cupyx.scipy.ndimage.uniform_filter(x, 3)": Said(
        "cupyx.scipy.ndimage.uniform_filter(x, 3)",
        "dc.box_filter(x, 3)",
        "cupyx.scipy.ndimage.correlate(x, np.full((3, 3), 1 / 9))",
    ),
    "cupyx.scipy.ndimage.mean(x, labels, index)": Said(
        "cupyx.scipy.ndimage.mean(x, cupy.asarray(k.compute()), cupy.asarray([1, 2]))",
        "dc.ndmeasure.mean(x, k, [1, 2])",
    ),
    "cupy.asarray(x)": Said("cupy.asarray(y).get()", "dc.to_host(dc.to_gpu(da.asarray(y)))"),
    "cupy.asnumpy(cupy.cumsum(x))": Said(
        "cupy.asnumpy(cupy.cumsum(x, 0))", "dc.to_host(dc.cumsum(dc.to_gpu(da.asarray(y)), 0))"
    ),
}

NOT_RUN = {
    "block_size=": "there is nothing on our side",
    "sample=": "there is nothing on our side",
    "cupy.ReductionKernel(...)": "a monoid's C++ is run by tests/api/test_custom.py",
    "import cupynumeric as np": "it takes Legate, and no expressions are compared",
    "legate --gpus 4 SCRIPT": "a command",
    "legate --nodes 8 ...": "a command",
    "an array": "where arrays come from is no result",
    "results are computed in the background": "when something is computed is no result",
}

#: What Dask's functions and ours are called with, where that is not `x` and ``axis=0``.
ARGUMENTS = {
    "coarsen": "np.sum, x, {0: 2}, trim_excess=True",
    **dict.fromkeys(("all", "any", "min", "max"), "x > 0, axis=1"),
    **dict.fromkeys(("argwhere", "count_nonzero", "flatnonzero", "nonzero"), "x > 0"),
    # Two NaN in a line are a tie, of which Dask takes either.
    **dict.fromkeys(("argtopk", "topk"), "x[:, :3], 3, axis=0"),
    **dict.fromkeys(("quantile", "nanquantile"), "x, [0.2, 0.7], axis=0"),
    "bincount": "k.ravel(), weights=abs(k.ravel()) * 0.5",
    "compress": "[True, False, True], x, axis=0",
    "digitize": "x, edges",
    "extract": "x > 0, x",
    "histogram": "x, edges, weights=x * 0 + 1",
    "histogram2d": "x[:, 0], x[:, 1], [edges, edges]",
    "histogramdd": "x[:, :2], [edges, edges]",
    "isin": "k, [1, 3]",
    **dict.fromkeys(("corrcoef", "cov"), "x"),
    "matmul": "x, x[:3].T",
    "moment": "x, 3, axis=0",
    "norm": "x, axis=0",
    "nanpercentile": "x, 30, axis=0",
    "percentile": "x.ravel(), 30",
    "push": "x, 2, 0",
    "searchsorted": "da.asarray(edges), x",
    "select": "[x > 0, x < -1], [x, x * 2], np.nan",
    "transpose": "x",
    "unique": "k",
}

#: Of ours with another order of arguments.
OURS = {"push": "x, 0, 2"}

#: What Dask does not have as NumPy does, which both are held to.
NUMPYS = {
    "percentile": "np.percentile(y.ravel(), 30)",
    "nanmedian": "np.nanmedian(y, axis=0)",
}


def array_names() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    y = np.where(rng.random((12, 5)) < 0.1, np.nan, rng.normal(size=(12, 5)))
    k = rng.integers(0, 5, (12, 5))
    names = {"y": y, "x": da.from_array(y, chunks=(5, 2)), "k": da.from_array(k, chunks=(5, 2))}
    return {**names, "np": np, "da": da, "dc": dc, "edges": np.linspace(-2, 2, 7)}


def xarray_names() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    cube = np.where(rng.random((400, 6, 5)) < 0.1, np.nan, rng.normal(size=(400, 6, 5)))
    # At one place there is nothing.
    cube[:, 0, 0] = np.nan
    coords = {"time": pd.date_range("2001-01-01", periods=400), "lat": np.linspace(-50, 50, 6)}
    x = xr.DataArray(cube, coords, ("time", "lat", "lon"), "x").chunk(time=150, lat=4)
    return {"x": x, "w": np.cos(np.deg2rad(x.lat)), "edges": [-60, 0, 60], "xr": xr, "dc": dc}


def xhistogram_names() -> dict[str, Any]:
    module = pytest.importorskip("xhistogram.xarray")
    names = xarray_names()
    edges = np.linspace(-2, 2, 7)
    bins = {"ex": edges, "ey": np.linspace(0, 4, 5), "edges": edges}
    both = {"histogram": module.histogram, "xhistogram": import_module("xhistogram")}
    return {**names, **bins, **both, "y": (names["x"] ** 2).rename("y")}


def histogram_names() -> dict[str, Any]:
    hist, boost = pytest.importorskip("hist"), pytest.importorskip("boost_histogram")
    rng = np.random.default_rng(2)
    y = np.where(rng.random(200) < 0.1, np.nan, rng.normal(size=200))
    x, axis = da.from_array(y, chunks=70), boost.axis.Regular(5, -2, 2)
    w = da.from_array(rng.integers(0, 5, 200) * 0.5, chunks=70)
    names = {"y": y, "x": x, "z": x * x, "w": w, "axis": axis, "h": boost.Histogram(axis)}
    with suppress(ImportError):
        names["dask_histogram"] = import_module("dask_histogram")
        import_module("dask_histogram.boost")
    return {
        **names,
        "hist": hist,
        "boost": boost,
        "edges": np.linspace(-2, 2, 7),
        "np": np,
        "dc": dc,
    }


def cupy_names() -> dict[str, Any]:
    """Return the names that rows of CuPy use: CuPy's, or NumPy's and SciPy's without CuPy."""
    names = array_names()
    try:
        cupy = import_module("cupy")
        import_module("cupyx.scipy.ndimage"), import_module("cupyx.scipy.special")
        names["x"] = names["x"].map_blocks(cupy.asarray)
        return {**names, "cupy": cupy, "cupyx": import_module("cupyx")}
    except ImportError:
        pytest.importorskip("scipy.ndimage"), pytest.importorskip("scipy.special")
        return {**names, "cupyx": SimpleNamespace(scipy=import_module("scipy"))}


NAMES = {
    "dask.array": cache(array_names),
    "xarray and flox": cache(xarray_names),
    "xhistogram": cache(xhistogram_names),
    "dask-histogram": cache(histogram_names),
    "CuPy": cache(cupy_names),
}


def run(expression: str, names: dict[str, Any]) -> Any:
    # Some of xarray's and xhistogram's code is behind their dependencies.
    with warnings.catch_warnings(), dask.config.set(scheduler="synchronous"):
        warnings.simplefilter("ignore")
        (found,) = dask.compute(eval(expression, names))
    return found


def assert_same(theirs: Any, ours: Any) -> None:
    """Hold results to each other: numbers, arrays, histograms and what has labels, or lists."""
    if isinstance(theirs, tuple | list):
        for one, other in zip(theirs, ours, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, xr.DataArray):
        ours = ours.transpose(*theirs.dims)
        more = [name for name in ours.coords if name not in theirs.coords]
        xr.testing.assert_allclose(theirs, ours.drop_vars(more))
    elif hasattr(theirs, "axes"):
        np.testing.assert_allclose(ours.values(flow=True), theirs.values(flow=True), rtol=1e-13)
    else:
        theirs, ours = (x.get() if hasattr(x, "get") else x for x in (theirs, ours))
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


def test_each_row_is_told_once() -> None:
    keys = [row.key for row in rows()]
    assert len({*keys}) == len(keys)
    assert {*SAID, *NOT_RUN} <= {*keys}
    assert not {*SAID} & {*NOT_RUN}
    assert {row.section for row in rows() if row.key not in NOT_RUN} == {*NAMES}


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.section}: {row.key}")
def test_both_sides_are_the_same(row: Row) -> None:
    if row.key in NOT_RUN:
        pytest.skip(NOT_RUN[row.key])
    names = NAMES[row.section]()
    if row.section == "dask.array":
        name = code(row.theirs).rpartition(".")[2]
        given = ARGUMENTS.get(name, "x, axis=0")
        theirs, ours = f"{code(row.theirs)}({given})", f"{code(row.ours)}({OURS.get(name, given)})"
        said = Said(NUMPYS.get(name, theirs), ours)
    else:
        said = SAID.get(row.key, Said(code(row.theirs), code(row.ours)))
    theirs = said.theirs
    if row.section == "dask-histogram" and "dask_histogram" not in names:
        # Without the library, only the syntax is checked.
        compile(theirs, row.key, "eval")
        theirs = said.stand_in
    if row.section == "CuPy":
        if "cupy" not in names and not said.stand_in and "to_gpu" in said.ours:
            pytest.skip("there is no GPU to go to")
        theirs = theirs if "cupy" in names else said.stand_in or theirs
        of_cupy = names.get("cupy", np)
        found = run(theirs, {**names, "cupy": of_cupy, "x": of_cupy.asarray(names["y"])})
    else:
        found = run(theirs, names)
    assert_same(found, run(said.ours, names))

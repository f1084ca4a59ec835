"""What `install` and the accessor return is as plain xarray has it, in all but what is known.

The yardstick is xarray on the same Dask arrays, with nothing of ours installed. Each call is made
of every second dtype, and of all by HYPOTHESIS_PROFILE=thorough; `make fuzz` draws them, too.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import pytest
from support.processes import printed

import dask_coop as dc

xr: Any = pytest.importorskip("xarray")
pytest.importorskip("flox")

from support import xarray_calls  # noqa: E402
from support.compiled import THOROUGH  # noqa: E402
from support.xarray_calls import CALLS, DTYPES, Difference, compare, field, fields  # noqa: E402

import dask_coop.xarray  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"


class Known(NamedTuple):
    """A difference that stays.

    Attributes
    ----------
    calls : str
        A pattern of the calls that have it.
    aspect : str
        As of `xarray_calls.Difference`.
    example : str
        A call that has it.
    said : str
        What the page says of it, with the reason.
    """

    calls: str
    aspect: str
    example: str
    said: str


#: What stays different with ours installed; docs/install.md says the same.
INSTALLED = [
    Known(
        r"\.(rolling|cumulative)\(|\.interpolate_na\(.*limit",
        "chunks",
        "x.rolling(time=3).sum()",
        "`rolling`, `cumulative` and `interpolate_na(limit=)` keep the chunks of the array",
    ),
    Known(
        r"\.(groupby|groupby_bins|resample)\(",
        "chunks",
        "x.resample(time='2D').mean()",
        "Groups are cut into chunks of their own",
    ),
    Known(
        r"\.interp(_like|olate)?\(",
        "chunks",
        "x.interp(y=[5, 12], time=x.time[2:])",
        "`interp` returns one chunk for each chunk in which new positions lie",
    ),
    Known(
        r"\.arg(min|max)\(\)",
        "values",
        "x.argmin()",
        "`argmin()` and `argmax()` over all dimensions return the first of equal elements",
    ),
    Known(
        r"\.[fb]fill\(.*limit",
        "dtype",
        "x.ffill('y', limit=3)",
        "`ffill` and `bfill` of integers return integers",
    ),
    Known(
        r"\.quantile\(",
        "values",
        "x.where(x < 0, np.inf).quantile(0.5, 'time')",
        "Quantiles beside an infinity are NumPy's",
    ),
    Known(
        r"\.rolling\(.*\.(sum|mean)\(",
        "values",
        "(x.astype('i8') + 2**62).rolling(time=3).sum()",
        "Windows of 64-bit integers are added in float64",
    ),
]

#: What stays different of the accessor; docs/xarray.md says the same.
ACCESSOR = [
    Known(
        r"\.quantile\(",
        "coords",
        "quantile(0.5, 'time')",
        "`quantile` keeps coordinates without dimensions",
    ),
    Known(
        r"\.quantile\(.*keep_attrs=False",
        "attrs",
        "quantile(0.5, 'time', keep_attrs=False)",
        "and heeds `keep_attrs=False`",
    ),
]


def unknown(call: str, found: list[Difference], known: list[Known]) -> list[Difference]:
    """Return the differences that are not known ones."""
    allowed = {row.aspect for row in known if re.search(row.calls, call)}
    return [difference for difference in found if difference.aspect not in allowed]


def wrong(calls: list[str], x: Any) -> dict[str, list[Difference]]:
    """Return what differs by the calls that have it."""
    known = [row for row in INSTALLED if row.aspect == "chunks"]
    found = {call: unknown(call, compare(call, x), known) for call in calls}
    return {call: differences for call, differences in found.items() if differences}


def share(calls: list[str], dtype: str) -> list[str]:
    """Return every second call, and for every second dtype the others."""
    return calls if THOROUGH else calls[DTYPES.index(dtype) % 2 :: 2]


@pytest.mark.each(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", CALLS)
def test_results_are_as_without_ours(kind: str, dtype: str) -> None:
    assert wrong(share(CALLS[kind], dtype), field(dtype)) == {}


@pytest.mark.parametrize("kind", CALLS)
def test_datasets_are_as_without_ours(kind: str) -> None:
    # A Dataset calls what each of its arrays calls.
    assert wrong(CALLS[kind][:: 1 if THOROUGH else 6], fields()) == {}


def test_arrays_without_a_name_stay_without() -> None:
    x = field("f4", name=None)
    calls = ["x.sum('time')", "x.rolling(time=3).mean()", "x.ffill('y')"]
    assert wrong(calls, x) == {}
    assert dc.nansum(x, 0).name is None
    assert x.coop.move_max("time", 3).name is None


def test_arrays_of_these_tests_have_what_results_might_keep() -> None:
    for x in (field("f4"), fields().of_f4):
        assert x.encoding == xarray_calls.ENCODING
        assert all(coord.attrs and coord.encoding for coord in x.coords.values())


@pytest.mark.each(2)
@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u8", "?", "f2"])
def test_windows_have_the_dtypes_that_xarrays_options_give(
    dtype: str, center: bool, bottleneck: bool
) -> None:
    windows = field(dtype).rolling(time=3, center=center)
    with xr.set_options(use_bottleneck=bottleneck):
        # Plain xarray has no std and var of bool.
        for name in ("sum", "mean", "min", "max", *(("std", "var") if dtype != "?" else ())):
            plain = getattr(windows, name)().dtype
            with dc.installed():
                assert getattr(windows, name)().dtype == plain, name


def test_medians_are_float64_where_dask_has_numbagg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(da.reductions, "HAS_NUMBAGG", True)
    x = field("f4")
    with dc.installed():
        median, windows = x.median("time"), x.rolling(time=4).median()
    assert (median.dtype, windows.dtype) == ("f8", "f8")
    # The mean of the two in the middle is one of float64.
    xr.testing.assert_equal(median.compute(), x.astype("f8").compute().median("time"))


@pytest.mark.parametrize("row", INSTALLED, ids=lambda row: row.said)
def test_what_stays_different_is_so_and_stands_on_the_page(row: Known) -> None:
    assert row.aspect in {difference.aspect for difference in compare(row.example, field("i2"))}
    assert row.said in " ".join((DOCS / "install.md").read_text().split())


def test_what_is_written_after_windows_reads_back_as_it_was(tmp_path: Path) -> None:
    packed = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768}
    warm = xr.DataArray(np.full((200, 4), 300.0), dims=("time", "x"), name="t2m")
    warm.to_netcdf(tmp_path / "in.nc", engine="scipy", encoding={"t2m": packed})
    ds = xr.open_dataset(tmp_path / "in.nc", engine="scipy", chunks={"time": 50})
    with ds, dc.installed():
        ds.t2m.rolling(time=10).sum().to_netcdf(tmp_path / "sum.nc", engine="scipy")
        ds.rolling(time=10).sum().to_netcdf(tmp_path / "sums.nc", engine="scipy")
    for name in ("sum.nc", "sums.nc"):
        with xr.open_dataset(tmp_path / name, engine="scipy") as written:
            assert float(written.t2m.max()) == pytest.approx(3000)


def test_windows_of_a_zarr_array_are_written_in_their_own_chunks(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    ones = xr.DataArray(da.ones((20, 6), chunks=5), dims=("time", "y"), name="t2m")
    ones.to_zarr(tmp_path / "in.zarr", consolidated=False)
    t2m = xr.open_zarr(tmp_path / "in.zarr", consolidated=False).t2m.chunk(time=7, y=6)
    with dc.installed():
        t2m.rolling(time=3).sum().to_zarr(tmp_path / "sum.zarr", consolidated=False)
    written = xr.open_zarr(tmp_path / "sum.zarr", consolidated=False).t2m
    assert written.encoding["chunks"] == (7, 6)
    assert float(written.max()) == 3


_ALIKE = """
sum()
sum("time")
sum(["y", "time"], keep_attrs=False)
sum("y", keepdims=True)
prod("time", skipna=False)
mean("time")
std("time", ddof=1)
var("y")
min()
max("time", keep_attrs=False)
any("time")
all()
count("time")
argmin("time")
argmax("y")
median("time")
quantile(0.3)
quantile([0.1, 0.5], "time")
quantile(0.3, "y", skipna=False)
quantile(0.3, "time", keep_attrs=False)
cumsum("time")
cumprod("y", keep_attrs=False)
ffill("time", limit=2)
bfill("y")
"""
#: Methods of the accessor that xarray has, too.
ALIKE = _ALIKE.split("\n")[1:-1]


@pytest.mark.parametrize("kind", [*DTYPES, "Dataset"])
def test_the_accessor_returns_what_xarrays_methods_return(kind: str) -> None:
    x = fields() if kind == "Dataset" else field(kind)
    for call in ALIKE if kind == "Dataset" else share(ALIKE, kind):
        found = compare(f"x.{call}", x, f"x.coop.{call}")
        found = unknown(f".{call}", found, ACCESSOR)
        # A Dataset keeps its encoding, and that of variables that are left as they are.
        untouched = ("along_time", "along_y", "the Dataset") if kind == "Dataset" else ()
        assert [d for d in found if d.aspect != "encoding" or d.of not in untouched] == []


def test_a_dataset_keeps_its_encoding_where_xarrays_reductions_keep_it() -> None:
    found = fields().coop.sum("time", keep_attrs=False)
    assert found.encoding == fields().encoding
    assert found.y.attrs == fields().y.attrs


@pytest.mark.parametrize("row", ACCESSOR, ids=lambda row: row.said)
def test_what_stays_different_of_the_accessor_is_so_and_stands_on_the_page(row: Known) -> None:
    found = compare(f"x.{row.example}", field("f8"), f"x.coop.{row.example}")
    assert row.aspect in {difference.aspect for difference in found}
    assert row.said in " ".join((DOCS / "xarray.md").read_text().split())


def test_the_report_tells_how_results_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests before may have used up the room for reasons.
    monkeypatch.setattr("dask_coop.api.call.report._calls", Counter())
    x = field("f8")
    with dc.installed():
        x.rolling(time=3).max()
        x.quantile(0.5, "time")
        x.data.argmin()
        x.max()
    why: dict[str, set[str]] = {}
    for row in dc.report():
        why.setdefault(row.function, set()).add(row.why)
    for function, how in {
        "move_max": "chunks",
        "nanquantile": "NumPy's",
        "argmin": "equal elements",
    }.items():
        assert any(how in each for each in why[function])
    assert "" in why["nanmax"]


PLANNED = """
import sys, numpy as np, dask.array as da, xarray as xr
from support.xarray_calls import CALLS, field, outcome
assert da.array_expr_enabled()
served, x = set(), field("f4")
for calls in CALLS.values():
    for call in calls:
        found = outcome(call, x, installed=True)
        if isinstance(found, Exception):
            continue
        lazy, computed = found
        assert getattr(lazy, "dtype", None) != object, call
        expected = outcome(call, x.compute(), installed=False)
        if not isinstance(expected, Exception):
            xr.testing.assert_allclose(computed, expected[1], rtol=1e-4, atol=1e-4)
        served.add(call)
print(*served, sep="\\n")
"""


def test_planned_queries_are_served_or_refused() -> None:
    """xarray does not take Dask's arrays of expressions but where it calls nothing of NumPy's."""
    planned = {"DASK_ARRAY__QUERY_PLANNING": "true"}
    served = printed("-W", "ignore", "-c", PLANNED, **planned).splitlines()
    assert "x.rolling(time=3).sum()" in served
    assert 'x.sum("time")' not in served

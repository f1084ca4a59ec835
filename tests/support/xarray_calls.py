"""Calls of xarray that `install` serves, and in what two results of one call differ.

A call is a line of Python of ``x``, so that a failure can be run as it is shown::

    x.rolling(time=3).sum()  --plain xarray-->  result
              |                                   |  type, name, attrs, encoding, dims, coords with
              '-------with ours installed------>  |  their attrs and encoding, dtype, chunks, values
                                                result
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr

import dask_coop as dc

#: What a variable has that was read from a packed NetCDF file, and from a Zarr array.
ENCODING = {"dtype": np.dtype("i2"), "scale_factor": 0.01, "_FillValue": -32768, "chunks": (4, 3)}

DTYPES = ("f4", "f8", "i2", "?")

#: Of bins, the last of which some elements are on.
EDGES = np.array([-7.0, -2.5, 0, 1, 4, 4, 9])

_REDUCTIONS = """
x.sum()
x.sum("time")
x.sum("time", skipna=False)
x.sum("time", min_count=9)
x.sum("time", keep_attrs=False)
x.sum("y", keepdims=True)
x.prod(["y", "time"])
x.prod("time", min_count=9)
x.mean()
x.mean("time")
x.mean("y", skipna=False)
x.std("time")
x.std("time", ddof=1)
x.var("y", keep_attrs=False)
x.min()
x.min("time")
x.max("y", skipna=False)
x.count()
x.count("time")
x.any()
x.all("time")
x.argmax("time")
x.argmin("y")
x.argmax(...)
x.idxmax("time")
x.idxmin("y")
x.reduce(np.sum, "time")
x.reduce(np.nanmax, "time")
x.integrate("time")
xr.dot(x, w, dim="y")
xr.cov(x, x.shift(y=1), "time")
xr.corr(x, x.shift(time=2), "time")
xr.cov(x, x.shift(y=1), "time", weights=x.fillna(0) ** 2)
xr.corr(x, x.shift(time=2), weights=w)
np.sum(x, axis=0)
np.nanmax(x)
"""
_ORDER = """
x.median("time")
x.median("time", skipna=False)
x.median("y", keep_attrs=False)
x.quantile(0.3)
x.quantile(0.3, "time")
x.quantile([0.1, 0.5], "time")
x.quantile([0.1, 0.9], ["time", "y"])
x.quantile(0.3, "y", skipna=False)
x.quantile(0.3, "time", keep_attrs=False)
x.quantile(0.3, "time", method="lower")
x.chunk(time=-1).rank("time")
x.rank("time")
x.rank("y", pct=True)
x.isin([1, 2])
x.weighted(w).quantile(0.3, dim="time")
x.weighted(w).quantile([0.1, 0.7], dim=["y"], skipna=False)
x.weighted(w).quantile([0.1, 0.7])
"""
_ALONG = """
x.cumsum("time")
x.cumsum()
x.cumsum("y", skipna=False)
x.cumprod("time")
x.cumprod("y", keep_attrs=False)
x.ffill("time")
x.bfill("time")
x.ffill("time", limit=2)
x.bfill("y", limit=1)
x.chunk(time=-1).interpolate_na("time")
x.chunk(time=-1).interpolate_na("time", limit=1)
x.interpolate_na("time")
x.interpolate_na("time", limit=1, keep_attrs=False)
x.interpolate_na("time", method="nearest")
x.interpolate_na("time", max_gap="20h")
x.interpolate_na("y", use_coordinate=False)
x.interpolate_na("time", fill_value="extrapolate")
x.interpolate_na("time", method="cubic")
x.interp(time=pd.date_range("2001-01-01 05:00", periods=9, freq="11h"))
x.interp(time=pd.date_range("2001-01-03", periods=3, freq="3D"), method="nearest")
x.interp(time="2001-01-05T07:00")
x.interp(y=[5, 12, 39.5], time=pd.date_range("2001-01-02", periods=3))
x.interp(y=[60, -5, 11], kwargs={"fill_value": 0.5})
x.interp(y=xr.DataArray([[5, 12], [30, 50]], dims=("i", "j")))
x.interp_like(x[::2, 1:], method="nearest")
x.rolling_exp(time=3).mean()
x.rolling_exp(time=0.5, window_type="alpha").mean(keep_attrs=False)
x.rolling_exp(time=3).sum()
x.rolling_exp(y=3).std()
x.rolling_exp(time=3).corr(x + 1)
x.polyfit("time", 1)
x.polyfit("y", 2, full=True)
x.polyfit("time", 2, w=1 + np.arange(x.sizes["time"]))
x.polyfit("time", 1, cov=True)
x.cumulative_integrate("time")
x.differentiate("time")
x.diff("time")
"""
_WINDOWS = """
x.rolling(time=3).sum()
x.rolling(time=3).mean()
x.rolling(time=3).std()
x.rolling(time=3).std(ddof=1)
x.rolling(time=3).var()
x.rolling(time=3).min()
x.rolling(time=3).max()
x.rolling(time=3).median()
x.rolling(time=3).count()
x.rolling(time=3).argmax()
x.rolling(time=3).prod()
x.rolling(time=7, min_periods=1).sum()
x.rolling(time=4, min_periods=2, center=True).mean()
x.rolling(time=3, center=True).std()
x.rolling(time=3, center=True).min()
x.rolling(y=3, min_periods=1, center=True).max()
x.rolling(time=3).sum(keep_attrs=False)
x.rolling(time=3, center=True).max(keep_attrs=False)
x.rolling(time=3, y=2).sum()
x.rolling(time=3).construct("w")
x.rolling(time=3).construct("w", stride=2, keep_attrs=False).mean("w")
x.rolling(time=3).reduce(np.sum)
x.cumulative("time").sum()
x.cumulative("time").min(keep_attrs=False)
x.cumulative("time").std()
x.cumulative("y").mean()
x.rolling(time=8).argmin()
x.rolling(time=5, min_periods=2, center=True).argmax()
x.rolling(y=4, min_periods=2, center=True).median()
x.rolling(time=7, min_periods=2, center=True).reduce(np.nanquantile, q=0.3)
x.rolling(time=4).reduce(np.quantile, q=0.75, keep_attrs=False)
x.rolling(time=4, min_periods=1).reduce(np.nanmedian)
x.rolling(y=3).reduce(np.median)
x.rolling(time=4, min_periods=2).reduce(np.nanstd, ddof=1)
x.rolling(time=3).reduce(np.mean)
x.rolling(time=3).reduce(np.ptp)
"""
_BLOCKS = """
x.coarsen(y=2).mean()
x.coarsen(y=3).sum()
x.coarsen(y=4, boundary="trim").max()
x.coarsen(y=4, boundary="pad").min()
x.coarsen(y=2).std()
x.coarsen(y=2).median()
x.coarsen(y=2).count(keep_attrs=False)
x.coarsen(time=6, boundary="trim").mean()
x.coarsen(time=4, y=3, boundary="pad").std()
x.weighted(w).mean()
x.weighted(w).mean("time")
x.weighted(w).sum("time", keep_attrs=True)
x.weighted(w).std("time")
x.weighted(w).sum_of_weights("time")
"""
_GROUPS = """
x.groupby("zone").mean()
x.groupby("zone").sum(keep_attrs=False)
x.groupby("zone").std()
x.groupby("zone").max()
x.groupby("zone").count()
x.groupby("time.day").median()
x.groupby("time.day").min()
x.groupby_bins("y", [-5, 15, 35, 100]).mean()
x.resample(time="2D").mean()
x.resample(time="2D").sum(min_count=2)
x.resample(time="2D").quantile([0.1, 0.5])
x.resample(time="6h").ffill()
x.resample(time="6h").interpolate("linear")
x.resample(time="6h").asfreq()
x.groupby("zone").first()
x.groupby("zone").any()
x.groupby("zone").median()
x.groupby("zone").quantile([0.2, 0.9])
x.groupby("zone").map(lambda g: g.shift(time=1))
x.groupby("zone").map(lambda g: g.rank("time"))
x.groupby("zone").cumsum("time")
x.groupby("y").cumsum()
x.groupby_bins("y", [-5, 15, 17, 100]).first()
x.groupby_bins("y", [-5, 15, 17, 100]).last()
x.groupby_bins("y", [-5, 15, 17, 100]).sum()
x.groupby_bins("y", [-5, 15, 17, 100]).prod()
x.groupby_bins("y", [-5, 15, 17, 100]).max()
x.resample(time="12h").first()
x.resample(time="12h").last()
x.resample(time="12h").sum()
x.resample(time="12h").cumsum()
x.resample(time="12h").min()
"""
_HISTOGRAMS = """
xhistogram.histogram(x, bins=[edges])
xhistogram.histogram(x, bins=edges, dim=["time"])
xhistogram.histogram(x, bins=edges, dim=["y"], keep_coords=True)
xhistogram.histogram(x, bins=[edges], dim=["y", "time"], density=True)
xhistogram.histogram(x, bins=edges, dim=["time"], weights=w.fillna(0), range=(0, 1))
xhistogram.histogram(x, bins=edges, weights=xr.ones_like(x).chunk(time=3), density=True)
xhistogram.histogram(x, bins=edges, weights=x.area, block_size=2, bin_dim_suffix="_class")
xhistogram.histogram(x, w.rename("u"), bins=[edges, edges / 9])
xhistogram.histogram(x, (x * 2).rename("u").chunk(time=4), bins=edges, dim=["time"])
xhistogram.histogram(x, x.area, bins=[edges, edges * 9], dim=["y"], weights=w)
xhistogram.histogram(x, x.rename("u"), bins=edges, dim=["y"], density=True, keep_coords=True)
xhistogram.histogram(x, x.rename("u"), x.area, bins=[edges] * 3)
"""

CALLS = {
    "reductions": _REDUCTIONS.split("\n")[1:-1],
    "order": _ORDER.split("\n")[1:-1],
    "along": _ALONG.split("\n")[1:-1],
    "windows": _WINDOWS.split("\n")[1:-1],
    "blocks": _BLOCKS.split("\n")[1:-1],
    "groups": _GROUPS.split("\n")[1:-1],
}
xhistogram: Any = None
if find_spec("xhistogram"):
    import xhistogram.xarray

    xhistogram = xhistogram.xarray
    CALLS["histograms"] = _HISTOGRAMS.split("\n")[1:-1]


def field(dtype: str, seed: int = 0, name: str | None = "t2m") -> xr.DataArray:
    """Return an array in chunks with all that xarray keeps beside elements."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 10, (14, 6)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        values += rng.random(values.shape).astype(dtype)
        values[rng.random(values.shape) < 0.2] = np.nan
    return labelled(da.from_array(values, chunks=((5, 5, 4), (4, 2))), name)


def labelled(data: Any, name: str | None) -> xr.DataArray:
    """Return an array along time and y with coordinates, attributes and the encoding of a file."""
    times, ys = data.shape
    hours = pd.date_range("2001-01-01", periods=times, freq="17h")
    area = np.arange(1.0, times * ys + 1).reshape(times, ys)
    coords = {
        "time": xr.Variable("time", hours, {"long_name": "time"}, {"dtype": "f8"}),
        "y": xr.Variable("y", 10 * np.arange(ys), {"units": "deg"}, {"_FillValue": None}),
        "zone": xr.Variable("time", np.arange(times) % 3, {"kind": "zone"}, {"dtype": "i1"}),
        "area": xr.Variable(("time", "y"), area, {"units": "m2"}, {"scale_factor": 2.0}),
        "height": xr.Variable((), 2.0, {"units": "m"}, {"dtype": "f4"}),
    }
    x = xr.DataArray(xr.Variable(("time", "y"), data, {"units": "K"}), coords, name=name)
    x.encoding = dict(ENCODING)
    return x


def fields() -> xr.Dataset:
    """Return a Dataset of variables of several dtypes, some without a dimension."""
    made = {f"of_{dtype}": field(dtype, i, None) for i, dtype in enumerate(DTYPES[:3])}
    made["along_time"] = made["of_f8"][:, 0].drop_vars(["y", "area"])
    made["along_y"] = made["of_i2"][0].drop_vars(["time", "zone", "area"])
    ds = xr.Dataset(made, attrs={"title": "fields"})
    ds.encoding = {"unlimited_dims": {"time"}}
    return ds


def outcome(call: str, x: Any, installed: bool) -> Any:
    """Return what a call makes of `x`, lazy and computed, or the exception that it raises."""
    w = xr.DataArray(np.cos(0.3 * np.arange(x.sizes["y"])), {"y": x.y}, "y")
    names = {"x": x, "w": w, "np": np, "xr": xr, "pd": pd, "xhistogram": xhistogram, "edges": EDGES}
    with warnings.catch_warnings(), np.errstate(all="ignore"), dask.config.set(scheduler="sync"):
        warnings.simplefilter("ignore")
        try:
            with dc.installed() if installed else nullcontext():
                lazy = eval(call, names)
            computed: Any = dask.compute(lazy)[0]
        except Exception as error:
            return error
    return lazy, computed


class Difference(NamedTuple):
    """In what two results differ: the aspect, such as "chunks", of what, and both."""

    aspect: str
    of: str
    plain: Any
    found: Any


def compare(call: str, x: Any, other: str | None = None) -> list[Difference]:
    """Return in what a call differs with ours installed, or from an `other` call; also raises.

    Ours may serve what plain xarray refuses of chunks: then its result in memory is the yardstick.
    What it raises there, too, is left out.
    """
    plain = outcome(call, x, installed=False)
    found = outcome(other or call, x, installed=other is None)
    if isinstance(plain, Exception):
        plain = outcome(call, x.compute(), installed=False)
        if isinstance(plain, Exception) or isinstance(found, Exception):
            return []
        return [d for d in _differences(*plain, *found) if d.aspect != "chunks"]
    if isinstance(found, Exception):
        return [Difference("raises", call, "", f"{type(found).__name__}: {found}")]
    return [*_differences(*plain, *found)]


def _differences(p: Any, p_computed: Any, f: Any, f_computed: Any) -> Iterator[Difference]:
    if type(p) is not type(f):
        yield Difference("type", "", type(p), type(f))
        return
    if isinstance(p, dict):
        for key in p:
            yield from _differences(p[key], p_computed[key], f[key], f_computed[key])
        return
    parts = {"": (p, f, p_computed, f_computed)}
    if isinstance(p, xr.Dataset):
        yield from _different("attrs", "the Dataset", p.attrs, f.attrs)
        yield from _different("encoding", "the Dataset", p.encoding, f.encoding)
        yield from _different("variables", "the Dataset", list(p.data_vars), list(f.data_vars))
        both = p.data_vars.keys() & f.data_vars.keys()
        parts = {n: (p[n], f[n], p_computed[n], f_computed[n]) for n in both}
    elif isinstance(p, xr.DataArray):
        yield from _different("name", "", p.name, f.name)
    else:
        yield from _different_values("", p_computed, f_computed)
        return
    for name, (a, b, *computed) in parts.items():
        yield from _different("coords", name, {*a.coords}, {*b.coords})
        yield from _different("indexes", name, {*a.indexes}, {*b.indexes})
        yield from _different_variables(str(name), a, b, *computed)
        for coord in a.coords.keys() & b.coords.keys():
            of = f"{coord} of {name}"
            yield from _different_variables(of, a[coord], b[coord], *(c[coord] for c in computed))


def _different_variables(
    of: str, p: Any, f: Any, p_computed: Any, f_computed: Any
) -> Iterator[Difference]:
    yield from _different("type", of, type(p.variable), type(f.variable))
    for aspect in ("dims", "attrs", "encoding", "dtype", "chunks"):
        yield from _different(aspect, of, getattr(p, aspect), getattr(f, aspect))
    # Where it is xarray's own, what it declares is not always what it computes.
    if p.dtype == p_computed.dtype:
        yield from _different("computed dtype", of, f.dtype, f_computed.dtype)
    yield from _different_values(of, p_computed.values, f_computed.values)


def _different(aspect: str, of: str, p: Any, f: Any) -> Iterator[Difference]:
    if p != f:
        yield Difference(aspect, of, p, f)


def _different_values(of: str, p: Any, f: Any) -> Iterator[Difference]:
    p, f = np.asarray(p), np.asarray(f)
    if p.shape != f.shape:
        yield Difference("shape", of, p.shape, f.shape)
    elif p.dtype.kind in "fc":
        # What plain xarray rounds to float32 on the way, ours keep in float64; 2**-24 is its unit.
        bound = 2.0**-15
        scale = np.max(np.abs(p), where=np.isfinite(p), initial=0)
        if not np.allclose(p, f, rtol=bound, atol=bound * scale, equal_nan=True):
            yield Difference("values", of, p, f)
    elif not pd.Series(p.ravel()).equals(pd.Series(f.ravel().astype(p.dtype))):
        yield Difference("values", of, p, f)

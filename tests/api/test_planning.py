"""With query planning on, which is decided when Dask is imported: in processes of their own."""

from __future__ import annotations

import json

import pytest
from support.processes import printed

# One worker runs the scripts for all tests.
pytestmark = pytest.mark.xdist_group("planning")

PREAMBLE = """
import dask
import dask.array as da
import boost_histogram as bh
import numpy as np
import dask_coop as dc
from dask_coop.monoids import MAX
assert da.array_expr_enabled()
host = np.random.default_rng(0).random((40, 30))
x = da.from_array(host, chunks=(7, 30)) + 1
y = host + 1
h = np.where(host > 0.5, y, np.nan)
g = da.from_array(h, chunks=(7, 30))
d = (host * 1000).astype("M8[D]")
dates = da.from_array(d, chunks=(7, 30))
z = (host - 0.5) * (1 + 2j) + np.where(host > 0.9, np.nan * 1j, 0)
complexes = da.from_array(z, chunks=(7, 30))
out_of_reach = x.astype("g")
same = np.testing.assert_allclose
span = dc.Monoid(
    "span", np.minimum, np.inf, ("f8", (2,)), lift=lambda x: np.stack([x, -x], -1),
    finalize=lambda v: (v[..., 0], -v[..., 1]),
)
"""


def run(script: str) -> str:
    """Run a script in a process in which Dask plans queries; return what it prints."""
    return printed("-W", "ignore", "-c", PREAMBLE + script, DASK_ARRAY__QUERY_PLANNING="true")


#: Runs scripts, each with names of its own, and prints the tracebacks of those that fail.
ALL = """
import json, traceback
failed = {{}}
for name, script in {scripts!r}.items():
    try:
        exec(compile(script, name, "exec"), dict(globals()))
    except Exception:
        failed[name] = traceback.format_exc()
print(json.dumps(failed))
"""


#: What holds of planned arrays, and the script that checks it.
SCRIPTS = {
    "every kind of function takes and returns expressions": """
for got, expected in [
    (dc.sum(x), y.sum()),
    (dc.sum(x, axis=0, keepdims=True), y.sum(0, keepdims=True)),
    (dc.max(x, axis=-1), y.max(-1)),
    (dc.argmin(x), y.argmin()),
    (dc.topk(x, 3), np.sort(y)[:, :-4:-1]),
    (dc.argtopk(x, -3, axis=0), np.argsort(y, 0)[:3]),
    (dc.sort(x, axis=0), np.sort(y, 0)),
    (dc.quantile(x, [0.1, 0.5], axis=0), np.quantile(y, [0.1, 0.5], axis=0)),
    (dc.nanmedian(g, axis=0), np.nanmedian(h, axis=0)),
    (
        dc.quantile(x, 0.5, axis=0, weights=np.arange(40.0), method="inverted_cdf"),
        np.quantile(y, 0.5, axis=0, weights=np.arange(40.0), method="inverted_cdf"),
    ),
    (
        dc.quantile(x, 0.5, weights=x, method="inverted_cdf"),
        np.quantile(y, 0.5, weights=y, method="inverted_cdf"),
    ),
    (dc.argsort(x, axis=None), np.argsort(y, None)),
    (dc.var(x, ddof=1), y.var(ddof=1)),
    (dc.describe(x).std, y.std()),
    (dc.cumsum(x, axis=0), y.cumsum(0)),
    (dc.cumsum(x), y.cumsum()),
    (dc.histogram(x, 5)[0], np.histogram(y, 5)[0]),
    (dc.histogram(x, 5)[1], np.histogram(y, 5)[1]),
    (dc.histogram(x, 5, (1, 2), weights=x)[0], np.histogram(y, 5, (1, 2), weights=y)[0]),
    (dc.histogram(x, 5, (1, 2), axis=1, flow=True)[0].sum(0)[1:-1], np.histogram(y, 5, (1, 2))[0]),
    (dc.histogram(x, 5, (x.min(), x.max()))[1], np.histogram(y, 5)[1]),
    (dc.histogramdd(x[:, :2], 3)[0], np.histogramdd(y[:, :2], 3)[0]),
    (dc.histogram2d(x, x + x, 3)[2], np.histogram2d(y.ravel(), (y + y).ravel(), 3)[2]),
    (dc.bincount((x * 9).astype("u1"), minlength=256), np.bincount((y * 9).astype("u1").ravel(),
                                                                   minlength=256)),
    (dc.digitize(x, [1.2, 1.7]), np.digitize(y, [1.2, 1.7])),
    (dc.transpose(x), y.T),
    (dc.transpose(x, contiguous=True), y.T),
    (dc.matmul(x, dc.transpose(x)), y @ y.T),
    (dc.sum(host), host.sum()),
    (dc.reduce(x, dc.Monoid("hypot", np.hypot, 0, "f8"), axis=0), np.hypot.reduce(y, 0)),
    (dc.scan(x, dc.Monoid("hypot", np.hypot, 0, "f8"), axis=0), np.hypot.accumulate(y, 0)),
    (dc.scan(x, MAX, axis=1), np.maximum.accumulate(y, 1)),
    (dc.reduce(x, np.add, axis=1), y.sum(1)),
    (dc.scan(x, np.logical_xor, axis=1), np.logical_xor.accumulate(y, 1)),
    (dc.scan(x, np.multiply, axis=0), y.cumprod(0)),
    *zip(dc.reduce(x, span, axis=0), (y.min(0), y.max(0))),
    *zip(dc.scan(x, span, axis=0), (np.minimum.accumulate(y), np.maximum.accumulate(y))),
    (dc.prod(x, axis=0), y.prod(0)),
    (dc.min(x), y.min()),
    (dc.any(x > 1.5, axis=0), (y > 1.5).any(0)),
    (dc.all(x > 1.5, axis=0), (y > 1.5).all(0)),
    (dc.argmax(x, axis=1), y.argmax(1)),
    (dc.mean(x, dtype="f4"), y.mean(dtype="f4")),
    (dc.std(x, axis=0), y.std(0)),
    (dc.ptp(x, axis=0), np.ptp(y, 0)),
    (dc.count_nonzero(x > 1.5, axis=0), np.count_nonzero(y > 1.5, 0)),
    (dc.moment(x, 3), ((y - y.mean()) ** 3).mean()),
    (dc.norm(x), np.linalg.norm(y)),
    (dc.norm(x, 3, axis=0), np.linalg.norm(y, 3, 0)),
    *((getattr(dc, n)(g, axis=0), getattr(np, n)(h, axis=0)) for n in (
        "nansum", "nanprod", "nanmin", "nanmax", "nanmean", "nanvar", "nanstd", "nanargmin",
        "nanargmax", "nancumsum", "nancumprod")),
    *((getattr(dc, n)(complexes, axis=0), getattr(np, n)(z, axis=0)) for n in (
        "min", "max", "ptp", "argmin", "argmax", "nanmin", "nanmax", "nanargmin", "nanargmax")),
    (dc.sum(x, where=x > 1.5, initial=3), y.sum(where=y > 1.5, initial=3)),
    (dc.max(x, where=x > 1.5, initial=0, axis=1), y.max(where=y > 1.5, initial=0, axis=1)),
    (dc.sum(x, reproducible=True), y.sum()),
    (dc.mean(x, axis=0, reproducible=True), y.mean(0)),
    (dc.cumprod(x, axis=0), y.cumprod(0)),
    (dc.cumsum(x, axis=0, method="sequential"), y.cumsum(0)),
    (dc.cumsum(x, axis=0, method="recompute", reverse=True), y[::-1].cumsum(0)[::-1]),
    (dc.cumsum(x, axis=1, segments=x > 0), y),
    (dc.cummax(x, axis=0), np.maximum.accumulate(y, 0)),
    (dc.cummin(x), np.minimum.accumulate(y.ravel())),
    (dc.logcumsumexp(x, axis=1), np.logaddexp.accumulate(y, 1)),
    (dc.cumulative_sum(x, axis=0, include_initial=True),
     np.insert(y.cumsum(0), 0, 0, axis=0)),
    (dc.cumulative_prod(x, axis=1), y.cumprod(1)),
    (dc.histogram(x, da.from_array(np.array([1, 1.3, 2])))[0], np.histogram(y, [1, 1.3, 2])[0]),
    (dc.histogramdd((x, x + x), 3, weights=x)[0],
     np.histogramdd((y.ravel(), (y + y).ravel()), 3, weights=y.ravel())[0]),
    (dc.bincount((x * 9).astype("u1"), x, 256), np.bincount((y * 9).astype("u1").ravel(),
                                                            y.ravel(), 256)),
    (dc.matmul(x, x.T, semiring="min_plus"), (y[:, None] + y).min(2)),
    (dc.select(x, x > 1.5, sizes="compute", balanced=True), y[y > 1.5]),
    (dc.select([x > 1.5, x > 1], [x, 7], -1), np.select([y > 1.5, y > 1], [y, 7], -1)),
    (dc.select(x, host[:, 0] > 0.5, sizes="compute"), y[host[:, 0] > 0.5]),
    (dc.compress(host[0] > 0.5, x, axis=1, sizes="compute"), y.compress(host[0] > 0.5, 1)),
    (dc.compress(x[0] > 1.5, x, axis=1, sizes="compute"), y.compress(y[0] > 1.5, 1)),
    (dc.ewm_mean(x, axis=0, alpha=1, min_periods=2), np.vstack([0 * y[:1] + np.nan, y[1:]])),
    (dc.extract(x > 1.5, x, sizes="compute"), y[y > 1.5]),
    *zip(dc.nonzero(x > 1.5, sizes="compute"), np.nonzero(y > 1.5)),
    (dc.flatnonzero(x > 1.5, sizes="compute"), np.flatnonzero(y > 1.5)),
    (dc.argwhere(x > 1.5, sizes="compute"), np.argwhere(y > 1.5)),
    (dc.sum(out_of_reach, axis=0), y.astype("g").sum(0)),
    (dc.unique(x, return_inverse=True)[1], np.unique(y, return_inverse=True)[1]),
    (dc.isin(x, x[:3] + 0), np.isin(y, y[:3])),
    (dc.searchsorted(dc.cumsum(x), x * 99), np.searchsorted(y.cumsum(), y * 99)),
]:
    assert type(got) is da.Array, type(got)
    expected = np.asarray(expected)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), (got, expected)
    same(got.compute(), expected)
assert (dc.min(dates, axis=0).compute() == d.min(0)).all()
assert dc.histogram(x, "sturges", (1, 2))[0].compute().sum() == y.size
filled = dc.to_hist([x, x + x], [bh.axis.Regular(5, 1, 2), bh.axis.Regular(3, 2, 5)], weights=x)
same(filled.compute().values(), np.histogramdd((y.ravel(), (y + y).ravel()), (5, 3),
                                               [(1, 2), (2, 5)], weights=y.ravel())[0])
""",
    "arrays with labels hold expressions and so do results": """
import xarray as xr
import dask_coop.xarray
coords = {"row": np.arange(40.0), "zone": ("row", np.arange(40) % 3)}
data = xr.DataArray(x, coords, ("row", "column"), "a")
plain = data.copy(data=y)
other = (data + 1).rename("b"), (plain + 1).rename("b")
bins = {"bins": 4, "range": (1, 3), "dim": "row"}
for got, expected in [
    (dc.sum(data, 0), plain.sum("row")),
    (dc.sum(data, where=data.row > 9), plain[10:].sum()),
    (data.coop.mean("row"), plain.mean("row")),
    (data.coop.cumsum("row"), plain.cumsum("row")),
    (data.coop.quantile([0.1, 0.9], "row"), plain.quantile([0.1, 0.9], "row")),
    (data.coop.move_max("row", 9), plain.rolling(row=9).max()),
    (data.coop.groupby_reduce("zone", func="std"), plain.groupby("zone").std()),
    (data.coop.describe("row")["var"], plain.var("row").rename("var")),
    (data.coop.histogram(weights=data.row, **bins), plain.coop.histogram(weights=data.row, **bins)),
    (data.coop.histogram(other[0], **bins), plain.coop.histogram(other[1], **bins)),
    (data.coop.histogram(other[0], bins=3), plain.coop.histogram(other[1], bins=3)),
]:
    assert isinstance(got.data, da.Array), got
    xr.testing.assert_allclose(got.compute(), expected)
""",
    "what dask does not plan is refused in so many words": """
for name in ("cumsum", "nancumprod", "cumulative_sum", "ptp", "digitize", "histogram"):
    arguments = {"histogram": (3, (1, 2)), "digitize": ([1.5],)}.get(name, ())
    options = {"axis": 0} if name.startswith("cumulative") else {}
    try:
        getattr(dc, name)(out_of_reach, *arguments, **options)
    except NotImplementedError as error:
        assert "longdouble" in str(error) or "float128" in str(error), error
        assert "either while array.query-planning is on" in str(error), error
    else:
        raise AssertionError(name)
""",
    "masked arrays stay masked": """
m = np.ma.masked_greater(y, 1.5)
m[:, 3] = np.ma.masked
x = da.from_array(m, chunks=(7, 30))
for got, expected in [
    (dc.sum(x, axis=0), m.sum(0)),
    (dc.mean(x, axis=0), m.mean(0)),
    (dc.std(x, axis=0, keepdims=True), m.std(0, keepdims=True)),
    (dc.min(x), m.min()),
    (dc.argmin(x, axis=0), m.argmin(0)),
    (dc.describe(x, axis=0).count, m.count(0)),
    (dc.cumsum(x, axis=0), m.cumsum(0)),
    (dc.cummax(x, axis=0), np.ma.array(np.maximum.accumulate(m.filled(-1)), mask=m.mask)),
    (dc.norm(x, axis=0), (m**2).sum(0) ** 0.5),
    (dc.histogram(x, 4)[0], np.histogram(m.compressed(), 4)[0]),
    (dc.histogram(x, 4, (0, 2), axis=0)[0].sum(axis=1), m.count(0)),
]:
    assert type(got) is da.Array and got.dtype == expected.dtype, (got, expected)
    masked = type(expected) is np.ma.MaskedArray
    got = got.compute()
    assert np.ndim(got) == 0 or (type(got) is np.ma.MaskedArray) == masked, (got, expected)
    assert (np.ma.getmaskarray(got) == np.ma.getmaskarray(expected)).all(), (got, expected)
    same(np.ma.filled(got, -1), np.ma.filled(expected, -1))
""",
    "results go on as expressions": """
total = dc.sum(x, axis=0)
same((x / total - total).sum().compute(), (y / y.sum(0) - y.sum(0)).sum())
same(dc.cumsum(dc.cumsum(x, axis=0) + x, axis=1).compute(), (y.cumsum(0) + y).cumsum(1))
same(dask.compute(x, dc.mean(x), total)[1], y.mean())
kept = dc.cumsum(x, axis=0).persist()
assert kept.chunks == x.chunks
same((kept * 2).compute(), y.cumsum(0) * 2)
assert dc.sum(x).name == dc.sum(x).name != dc.sum(x + 1).name
""",
}


@pytest.fixture(scope="module")
def failed() -> dict[str, str]:
    """Return the tracebacks of the scripts that fail, which run in one process."""
    return dict(json.loads(run(ALL.format(scripts=SCRIPTS))))


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_planned(failed: dict[str, str], script: str) -> None:
    assert script not in failed, failed[script]


def test_results_are_computed_by_other_processes() -> None:
    run(
        """
from distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as c, Client(c):
        same((x + dc.cumsum(x, axis=0)).compute(), y + y.cumsum(0))
        same(dc.sum(x.persist()).compute(), y.sum())
"""
    )


def test_pairs_runs_filters_and_regions_take_expressions() -> None:
    run(
        """
from scipy import ndimage, signal, stats
t, hot, regions = np.arange(40.0), x > 1.5, (x * 4).astype("i4") - 4
of_regions = (y * 4).astype("i4") - 4
spelt = dc.run_events(hot, x, 0, segments=np.arange(40) % 9 == 0)
for got, expected in [
    (dc.polyfit(t, x, 2, w=t + 1), np.polyfit(t, y, 2, w=t + 1)),
    (dc.polyfit(t, x, 1, cov=True)[1][..., 0], np.polyfit(t, y[:, 0], 1, cov=True)[1]),
    (dc.linregress(t, x).stderr[0], stats.linregress(t, y[:, 0]).stderr),
    (dc.cov(x), np.cov(y)),
    (dc.lfilter([1.0, 2], [1, 0.5], x, 0), signal.lfilter([1.0, 2], [1, 0.5], y, 0)),
    (
        dc.lfilter([1.0, 2], [1, 0.5], x, 0, zi=np.ones((1, 30)))[1],
        signal.lfilter([1.0, 2], [1, 0.5], y, 0, zi=np.ones((1, 30)))[1],
    ),
    (dc.ewm_mean(x, 0, halflife=2.0, times=da.arange(40, chunks=9)),
     dc.ewm_mean(x, 0, halflife=2.0)),
    (dc.longest_run(hot, 0), dc.longest_run(y > 1.5, 0)),
    (spelt.sum, dc.run_events(y > 1.5, y, 0, segments=np.arange(40) % 9 == 0).sum),
    (dc.label(hot)[0], ndimage.label(y > 1.5)[0]),
    (dc.label(hot[:0])[1], 0),
    (dc.ndmeasure.mean(x, regions, [1, 2]), ndimage.mean(y, of_regions, [1, 2])),
    (dc.ndmeasure.maximum_position(x, regions, 1), ndimage.maximum_position(y, of_regions, 1)),
    (dc.approx_nunique(regions, 0, keepdims=True)[0], [len(set(c)) for c in of_regions.T]),
    (dc.crosstab(regions, regions).count.sum(0), np.unique(of_regions, return_counts=True)[1]),
    (dc.binned_statistic(x[:, 0], x[:, 1], "sum", 5).statistic,
     stats.binned_statistic(y[:, 0], y[:, 1], "sum", 5).statistic),
]:
    assert isinstance(got, da.Array)
    same(*dask.compute(got, expected), rtol=1e-9)
"""
    )

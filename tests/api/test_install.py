"""`install` puts our functions where those of Dask, xarray and flox are, and takes them back."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import flox
import numpy as np
import pytest
import xarray as xr
from conftest import missing_for_gpu
from dask.array import core
from support.host_cupy import lists
from support.processes import python
from xarray.computation.rolling import DataArrayRolling

import dask_coop as dc
from dask_coop.api.call import fallback, report
from dask_coop.api.install import install

X = np.random.default_rng(5).normal(size=(24, 10)).astype("f4")
X[::5, 3] = np.nan
X0 = np.arange(12.0).reshape(4, 3)


@pytest.fixture(autouse=True)
def _no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with an empty report."""
    monkeypatch.setattr(report, "_calls", Counter())


def lazy() -> da.Array:
    return da.from_array(X, chunks=(7, 4))


def field() -> xr.DataArray:
    coords = {"time": np.arange(24), "y": np.arange(10), "month": ("time", np.arange(24) % 3)}
    return xr.DataArray(lazy(), dims=("time", "y"), coords=coords, name="t", attrs={"units": "K"})


def served(result: Any) -> set[str]:
    """Return the functions of ours that the graph of a result has."""
    rows = dc.explain(getattr(result, "data", result))
    return {row.operation for row in rows if row.served_by == "dask_coop"}


def calls() -> dict[tuple[str, str], int]:
    """Return how often functions were called, by what served them."""
    found: dict[tuple[str, str], int] = {}
    for row in dc.report():
        key = row.function, row.served_by
        found[key] = found.get(key, 0) + row.calls
    return found


def names() -> dict[tuple[str, str], int]:
    """Return the identity of every attribute of what may be changed."""
    packages = ("dask", "distributed", "flox", "numpy", "xarray")
    modules = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in packages}
    found = {(n, name): id(value) for n, m in modules.items() for name, value in vars(m).items()}
    classes = (da.Array, DataArrayRolling)
    found |= {(str(c), name): id(value) for c in classes for name, value in vars(c).items()}
    handled = core._HANDLED_FUNCTIONS.items()
    return found | {("handled", str(key)): id(value) for key, value in handled}


#: Of float32 these are float32 for NumPy, and float64 for Dask.
NUMPYS = {"nanmedian", "nanpercentile"}

ARRAYS: dict[str, Callable[[da.Array], Any]] = {
    "sum": lambda x: x.sum(axis=0),
    "mean": lambda x: da.mean(x, axis=1),
    "max": lambda x: np.max(x),
    "amax": lambda x: np.amax(x, axis=0),
    "any": lambda x: (x > 2).any(),
    "argmin": lambda x: x.argmin(axis=0),
    "nanvar": lambda x: np.nanvar(x, axis=0, ddof=1),
    "std": lambda x: x.std(axis=0, keepdims=True),
    "moment": lambda x: x.moment(3, axis=0),
    "cumsum": lambda x: x.cumsum(axis=0),
    "nancumsum": lambda x: np.nancumsum(x, axis=1),
    "cumprod": lambda x: np.cumprod(x, axis=1),
    "nanmedian": lambda x: np.nanmedian(x, axis=0),
    "nanquantile": lambda x: np.nanquantile(x, [0.2, 0.7], axis=0),
    "nanpercentile": lambda x: da.nanpercentile(x, 30, axis=1),
    "percentile": lambda x: np.percentile(x[:, 0], [10, 50]),
    "histogram": lambda x: np.histogram(np.nan_to_num(x), 5, (-2, 2))[0],
    "histogram2d": lambda x: da.histogram2d(x[:, 0], x[:, 1], 3, [[-2, 2], [-2, 2]])[0],
    "bincount": lambda x: da.bincount((x[:, 0] > 0).astype(int), minlength=2),
    "digitize": lambda x: da.digitize(x[:, :2], np.array([-1.0, 0, 1])),
    "topk": lambda x: x[:, 0].topk(3),
    "argtopk": lambda x: da.argtopk(x[:, 0], 3),
    "nonzero": lambda x: (x > 0).nonzero()[0],
    "flatnonzero": lambda x: np.flatnonzero(x > 0),
    "compress": lambda x: da.compress(np.arange(24) % 2 == 0, x, axis=0),
    "unique": lambda x: np.unique((x[:, :2] > 0).astype("i4")),
    "isin": lambda x: da.isin((x[:, :2] > 0).astype("i4"), [1]),
    "searchsorted": lambda x: da.searchsorted(da.arange(9.0, chunks=4), x[:, 0]),
    "norm": lambda x: da.linalg.norm(x[:, :2]),
    "push": lambda x: da.push(x, None, 0),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_dasks_functions_are_ours_with_the_same_results(name: str) -> None:
    call = ARRAYS[name]
    theirs = call(lazy())
    with dc.installed():
        ours = call(lazy())
    assert served(ours), dc.explain(ours)
    assert not served(theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What Dask's do of NaN.
        expected = theirs.compute()
    if name == "percentile":  # Dask's are approximate.
        expected = np.percentile(X[:, 0], [10, 50])
    assert ours.dtype == ("f4" if name in NUMPYS else expected.dtype)
    np.testing.assert_allclose(ours.compute(), expected, rtol=2e-5, atol=1e-6, equal_nan=True)


FIELDS: dict[str, tuple[str, Callable[[xr.DataArray], Any]]] = {
    "mean": ("nanmean", lambda a: a.mean("time")),
    "sum": ("nansum", lambda a: a.sum("time")),
    "max": ("nanmax", lambda a: a.max()),
    "std": ("nanstd", lambda a: a.std("y")),
    "var": ("nanvar", lambda a: a.var("time", ddof=1)),
    "count": ("sum", lambda a: a.count("time")),
    "median": ("nanmedian", lambda a: a.median("time")),
    "quantile": ("nanquantile", lambda a: a.quantile([0.1, 0.9], "time")),
    "cumsum": ("nancumsum", lambda a: a.cumsum("time")),
    "cumprod": ("nancumprod", lambda a: a.cumprod("time")),
    "argmax": ("nanargmax", lambda a: a.argmax("time")),
    "ffill": ("ffill", lambda a: a.ffill("time")),
    "ffill with a limit": ("ffill", lambda a: a.ffill("time", limit=1)),
    "bfill": ("ffill", lambda a: a.bfill("time")),
    "rolling mean": ("move_mean", lambda a: a.rolling(time=3).mean()),
    "rolling sum": ("move_sum", lambda a: a.rolling(time=4, min_periods=2).sum()),
    "rolling max": ("move_max", lambda a: a.rolling(time=3, center=True).max()),
    "rolling min": ("move_min", lambda a: a.rolling(y=2).min()),
    "rolling std": ("move_std", lambda a: a.rolling(time=5).std()),
    "rolling var": ("move_var", lambda a: a.rolling(time=5).var()),
    "rolling median": ("move_median", lambda a: a.rolling(time=9, min_periods=2).median()),
    "rolling argmax": ("move_argmax", lambda a: a.rolling(time=5, center=True).argmax()),
    "rolling argmin": ("move_argmin", lambda a: a.rolling(y=2).argmin()),
    "rolling quantile": (
        "move_quantile",
        lambda a: a.rolling(time=6, min_periods=2, center=True).reduce(np.nanquantile, q=0.7),
    ),
    "rolling reduce": ("move_median", lambda a: a.rolling(time=6).reduce(np.median)),
    "rolling nansum": ("move_sum", lambda a: a.rolling(time=3, min_periods=1).reduce(np.nansum)),
    "groupby mean": ("groupby-nanmean", lambda a: a.groupby("month").mean()),
    "groupby max": ("groupby-nanmax", lambda a: a.groupby("month").max()),
    "groupby median": ("groupby-nanmedian", lambda a: a.groupby("month").median()),
    "groupby quantile": ("groupby-nanquantile", lambda a: a.groupby("month").quantile(0.3)),
    "groupby_bins": ("groupby-nansum", lambda a: a.groupby_bins("time", [0, 5, 24]).sum()),
    "weighted": ("nanmean", lambda a: a.weighted(a.y * 0 + 1.0).mean("y")),
    "coarsen": ("nanmean", lambda a: a.coarsen(time=4).mean()),
    "integrate": ("sum", lambda a: a.fillna(0).integrate("time")),
}


@pytest.mark.parametrize("name", FIELDS)
def test_xarray_builds_our_tasks(name: str) -> None:
    function, call = FIELDS[name]
    a = field()
    # In several chunks xarray has no medians of groups.
    theirs = call(a.compute() if name in ("groupby median", "groupby quantile") else a)
    with dc.installed():
        ours = call(a)
    assert function in served(ours), dc.explain(ours.data)
    assert ours.name == theirs.name
    assert ours.attrs == theirs.attrs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = theirs.compute()
    assert ours.dtype == ("f4" if function in NUMPYS else expected.dtype)
    xr.testing.assert_allclose(ours.compute(), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dims", [("time",), ("y", "time")])
def test_xarray_has_medians_by_lazy_labels(dims: tuple[str, ...]) -> None:
    groupers = pytest.importorskip("xarray.groupers")
    a = field().transpose("y", ..., "time")
    shape = tuple(a.sizes[dim] for dim in dims)
    zones = np.random.default_rng(0).integers(0, 3, shape)
    lazy = xr.DataArray(da.from_array(zones, chunks=3), dims=dims)
    by_zone = {"zone": groupers.UniqueGrouper(labels=[0, 1, 2])}
    known = a.compute().assign_coords(zone=(dims, zones)).groupby("zone")
    for func, q in (("median", ()), ("quantile", (0.3,))):
        with dc.installed():
            ours = getattr(a.assign_coords(zone=lazy).groupby(**by_zone), func)(*q)
        assert f"groupby-nan{func}" in served(ours)
        expected = getattr(known, func)(*q).transpose(*ours.dims)
        np.testing.assert_allclose(ours.compute(), expected, rtol=1e-5)


@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "?"])
def test_windows_of_integers_have_xarrays_dtypes(dtype: str, bottleneck: bool) -> None:
    a = xr.DataArray(np.arange(9).astype(dtype), dims="t")
    for center in (False, True):
        with xr.set_options(use_numbagg=False, use_bottleneck=bottleneck):
            expected = a.rolling(t=3, center=center).sum()
            with dc.installed():
                ours = a.chunk(t=2).rolling(t=3, center=center).sum()
        assert served(ours) == {"move_sum"}
        xr.testing.assert_identical(ours.compute(), expected)
        assert ours.dtype == expected.dtype


def test_uninstall_leaves_every_name_as_it_was() -> None:
    before = names()
    dc.install()
    dc.install()
    during = names()
    dc.uninstall()
    changed = {key for key in before if during[key] != before[key]}
    assert {("dask.array", "sum"), ("dask.array.reductions", "sum")} <= changed
    assert ("flox", "groupby_reduce") in changed
    assert ("xarray.core.duck_array_ops", "push") in changed
    after = names()
    assert {key: after[key] for key in before} == before
    assert not {*map(id, fallback.originals)} & {*after.values()}
    dc.uninstall()
    assert not any("WhenImported" in type(finder).__name__ for finder in sys.meta_path)


def test_numpys_functions_that_dask_lacks_are_handled_meanwhile() -> None:
    before = dict(core._HANDLED_FUNCTIONS)
    with dc.installed():
        with dc.installed():
            pass
        more = set(core._HANDLED_FUNCTIONS) - set(before)
        assert {np.sort, np.lexsort, np.linalg.vector_norm} <= more
        assert not any(hasattr(da, name) for name in ("sort", "lexsort"))
    assert before == core._HANDLED_FUNCTIONS
    with pytest.warns(FutureWarning, match=r"`numpy\.sort` function is not implemented"):
        np.sort(lazy())


def test_what_another_library_has_put_there_is_served_and_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrapped(x: da.Array) -> da.Array:
        return dasks(x)

    dasks = da.mean
    monkeypatch.setattr(da, "mean", dasks)
    with dc.installed():
        da.mean = wrapped
        with dc.installed():
            assert served(da.mean(lazy())) == {"mean"}
    assert da.mean is wrapped
    assert da.reductions.mean is dasks


def test_what_is_imported_while_it_is_uninstalled_is_left_alone() -> None:
    dasks = flox.core.groupby_reduce
    dc.uninstall()
    install._put_in(flox.core)
    assert flox.core.groupby_reduce is dasks


def test_blocks_keep_what_is_installed_until_the_last_one_ends() -> None:
    dasks = da.sum
    with dc.installed():
        with dc.installed():
            dc.install()
            dc.uninstall()
        assert da.sum is not dasks
        dc.install()
    assert da.sum is not dasks
    dc.uninstall()
    assert da.sum is dasks


def test_a_block_ends_with_an_error_too() -> None:
    dasks = da.sum
    with pytest.raises(KeyError), dc.installed():
        raise KeyError
    assert da.sum is dasks


def test_a_name_that_was_taken_meanwhile_is_dasks_again() -> None:
    with dc.installed():
        from dask.array import mean
    assert served(mean(lazy())) == set()
    with dc.installed():
        assert served(mean(lazy())) == {"mean"}


def test_what_is_not_served_is_dasks_and_the_report_says_why() -> None:
    x = da.from_array(np.array([1, 2, 3], object), chunks=2)
    before = calls()
    with dc.installed():
        total = x.sum()
    assert total.compute() == 6
    key = "sum", "Dask"
    assert calls()[key] == before.get(key, 0) + 1
    (row,) = [row for row in dc.report() if row[:3] == ("sum", "object", "Dask")]
    assert "does not take dtype object" in row.why
    assert "does not take dtype object" in repr(dc.report())
    (told,) = [row for row in dc.explain(total) if row.operation == "sum"]
    assert (told.served_by, told.why) == ("Dask", row.why)


def test_what_is_left_to_dask_is_dasks_throughout() -> None:
    x = da.from_array(np.arange(8.0).astype("g"), chunks=3)  # longdouble
    bins = [[0, 4, 8], [0, 8]]
    # Dask's function sums blocks that are no arrays.
    for call in (lambda: da.histogram2d(x, x, bins), lambda: dc.histogramdd((x, x), bins)):
        warned = pytest.warns(dc.FallbackWarning)
        with dc.installed(), dask.config.set({"coop.fallback": "warn"}), warned as caught:
            counts = call()[0]
        assert len(caught) == 1
        assert counts.compute().tolist() == [[4], [4]]


def test_edges_are_lazy_where_dasks_are() -> None:
    x, ends = lazy()[:, 0], ((0, 2), (0, 2))
    with dc.installed():
        _, edges = da.histogram(x, [0, 1, 2])
        _, same = da.histogram(x, bins=np.array([0, 1, 2]))
        _, (of_several, _) = da.histogramdd((x, x), bins=2, range=ends)
        _, _, of_two = da.histogram2d(x, x, bins=2, range=ends)
    assert edges.compute().tolist() == same.tolist() == [0, 1, 2]
    assert of_several.tolist() == of_two.tolist() == [0, 1, 2]


def test_a_least_length_is_declared() -> None:
    x = da.from_array(np.array([0, 2, 2]), chunks=2)
    with dc.installed():
        assert da.bincount(x, minlength=4).reshape(2, 2).compute().tolist() == [[1, 0], [2, 0]]
        assert np.isnan(da.bincount(x).shape[0])


def test_calls_within_calls_are_not_counted() -> None:
    before = calls()
    with dc.installed():
        da.std(da.from_array(np.array([1, 2, 3], object), chunks=2))  # by its own variance
        np.nanmedian(lazy())
    after = calls()
    new = {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0)}
    assert new == {("std", "Dask"): 1, ("nanmedian", "dask_coop"): 1}


def test_our_own_functions_are_in_the_report_too() -> None:
    before = calls()
    dc.sum(lazy())
    dc.sum(da.from_array(np.array([1, 2], object), chunks=1))
    after = calls()
    for who in ("dask_coop", "Dask"):
        assert after["sum", who] == before.get(("sum", who), 0) + 1


def test_a_report_has_an_end() -> None:
    for i in range(report.LIMIT + 5):
        report.count("sum", X, "Dask", f"reason {i}")
    assert len(dc.report()) == report.LIMIT + 1
    assert sum(row.calls for row in dc.report()) == report.LIMIT + 5


@pytest.mark.parametrize("choice", ["warn", "raise"])
def test_what_is_left_to_dask_is_said_as_configured(choice: str) -> None:
    x = da.from_array(np.array([1, 2, 3], object), chunks=2)
    said = "sum .*object"
    with dc.installed(), dask.config.set({"coop.fallback": choice}):
        if choice == "warn":
            with pytest.warns(dc.FallbackWarning, match=said) as caught:
                x.sum()
            assert caught[0].filename == __file__
        else:
            with pytest.raises(dc.Refused, match=said):
                x.sum()


WRONG: list[Callable[[], Any]] = [
    lambda: lazy().sum(axis=5),
    lambda: da.sum(lazy(), bogus=1),
    lambda: da.quantile(lazy(), 0.5, axis=0, method="no such"),
    lambda: lazy().cumsum(axis=0, method="no such"),
    lambda: da.histogram(lazy(), bins=-3, range=(0, 1)),
    lambda: da.sum(),
    lambda: da.sum(lazy(), engine="collective"),
]


@pytest.mark.parametrize("call", WRONG)
def test_errors_are_dasks(call: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever it is
        call()
    before = calls()
    with dc.installed(), pytest.raises(type(theirs.value)) as ours:
        call()
    assert str(ours.value) == str(theirs.value)
    assert calls() == before


def test_lazy_results_stay_lazy_where_the_configuration_has_an_engine() -> None:
    with dask.config.set({"coop.engine": "collective"}), dc.installed():
        assert isinstance(lazy().sum(), da.Array)


def test_out_is_written_to() -> None:
    out = da.zeros(10, dtype="f4")
    with dc.installed():
        result = da.sum(lazy(), axis=0, out=out)
    assert result is out
    assert served(out) == {"sum"}


def test_threads_may_install_and_call() -> None:
    x, expected, failed = lazy(), np.nansum(X, dtype="f8"), []

    def work() -> None:
        for _ in range(20):
            with dc.installed():
                total = float(da.nansum(x, dtype="f8").compute(scheduler="sync"))
            if abs(total - expected) > 1e-3:
                failed.append(total)

    work()
    before = names()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    after = names()
    assert after == {key: after[key] for key in after} | before


def test_there_is_no_third_kind_of_chunks() -> None:
    with pytest.raises(ValueError, match="'numpy' or 'cupy', got 'torch'"):
        dc.install(chunks="torch")  # type: ignore[arg-type]
    assert not served(lazy().sum())


def test_flox_is_served_where_something_is_lazy() -> None:
    by = np.arange(24) % 3
    with dc.installed():
        lazily, _ = flox.groupby_reduce(lazy().T, by, func="nanmean")
        at_once, _ = flox.groupby_reduce(X.T, by, func="nanmean")
    assert "groupby-nanmean" in served(lazily)
    assert isinstance(at_once, np.ndarray)
    np.testing.assert_allclose(lazily.compute(), at_once, rtol=1e-6)


def run(
    code: str, *arguments: str, env: dict[str, str] | None = None, fails: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run code in a new process."""
    words = [*(arguments or ["-c"]), *([textwrap.dedent(code)] if code else [])]
    done = python(*words, **(env or {}))
    assert fails == bool(done.returncode), done.stdout + done.stderr
    return done


BEFORE = """
    import dask_coop as dc
    dc.install()
    import sys
    # Dask itself imports xarray.
    assert "flox" not in sys.modules
"""
AFTER = """
    import flox.xarray, xarray
    import dask_coop as dc
    dc.install()
"""


@pytest.mark.parametrize("first", [BEFORE, AFTER])
def test_xarray_may_be_imported_before_or_after(first: str) -> None:
    run(
        textwrap.dedent(first)
        + textwrap.dedent("""
        import dask.array as da, numpy as np, xarray as xr, dask.array.stats, flox.xarray

        def served(result):
            return {r.operation for r in dc.explain(result.data) if r.served_by == "dask_coop"}

        def calls(a):
            yield from (a.mean("t"), a.ffill("t"), a.rolling(t=2).mean(), a.groupby("g").max())

        a = xr.DataArray(da.ones((6, 4), chunks=2), dims=("t", "y"))
        a = a.assign_coords(g=("t", np.arange(6) % 2))
        assert all(map(served, calls(a)))
        dc.uninstall()
        assert not any(map(served, calls(a)))
        assert xr.core.missing.push is xr.core.duck_array_ops.push
        assert flox.xarray.groupby_reduce is flox.groupby_reduce is flox.core.groupby_reduce
        """)
    )


@pytest.mark.parametrize(("value", "is_served"), [("1", True), ("0", False), ("", False)])
def test_the_environment_installs_it_and_an_import_alone_nothing(
    value: str, is_served: bool
) -> None:
    done = run(
        """
        import sys
        import dask.array as da
        print(type(da.ones(4).sum().__dask_graph__()), "dask_coop" in sys.modules)
        before = da.sum
        import dask_coop
        assert da.sum is before
        """,
        env={"DASK_COOP_INSTALL": value},
    )
    assert done.stdout.endswith(f"{is_served}\n")


def test_the_environment_is_checked() -> None:
    done = run("import dask_coop", env={"DASK_COOP_INSTALL": "perhaps"}, fails=True)
    assert "DASK_COOP_INSTALL must be 1, 0 or cupy, got 'perhaps'" in done.stderr


def test_ipython_loads_and_unloads_it() -> None:
    dasks = da.sum
    dc.load_ipython_extension(None)
    assert da.sum is not dasks
    dc.unload_ipython_extension(None)
    assert da.sum is dasks


def test_graphs_go_to_processes_where_nothing_is_installed(tmp_path: Path) -> None:
    theirs = lazy().max(axis=0)
    with dc.installed():
        ours = lazy().std(axis=0)
        path = tmp_path / "graphs.pkl"
        path.write_bytes(cloudpickle.dumps([ours, theirs, da.sum]))
        expected = [ours.compute(), theirs.compute()]
    np.save(tmp_path / "expected.npy", expected)
    for first in ("", "import dask_coop; dask_coop.install()"):
        run(f"""
            import pickle, numpy as np
            {first}
            *graphs, total = pickle.load(open({str(path)!r}, "rb"))
            for graph, expected in zip(graphs, np.load({str(tmp_path / "expected.npy")!r})):
                np.testing.assert_array_equal(graph.compute(), expected)
            assert total(graphs[0]).ndim == 0
        """)


def test_dasks_functions_can_be_pickled_while_ours_are_in_their_place() -> None:
    dasks = da.sum
    with dc.installed():
        again = cloudpickle.loads(cloudpickle.dumps(dasks))
    assert again(lazy()).ndim == 0


def test_query_planning_goes_on() -> None:
    run(
        """
        import dask.array as da, numpy as np
        import dask_coop as dc
        x = da.from_array(np.arange(12.0).reshape(4, 3), chunks=2)
        with dc.installed():
            total, sums = x.sum(), da.cumsum(x, axis=0)
            assert {r.served_by for r in dc.explain((total, sums))[-2:]} == {"dask_coop"}
            assert float((total + sums[-1, -1]).compute()) == 66 + 26
        try:
            dc.install(chunks="cupy")
        except ValueError as error:
            assert "array.query-planning" in str(error)
        else:
            raise AssertionError
        """,
        env={"DASK_ARRAY__QUERY_PLANNING": "true"},
    )


@pytest.fixture
def _gpus() -> Iterator[None]:
    """Have lists stand for arrays on a GPU."""
    with lists.in_cupys_place():
        yield


@pytest.mark.usefixtures("_gpus")
def test_chunks_go_to_gpus_at_the_first_operation_and_leave_as_numpys() -> None:
    x = da.from_array(X0, chunks=2)
    with dc.installed(chunks="cupy"):
        total = x.sum(axis=0)
        scanned = da.cumsum(x, axis=0)
        away = (x - total) * 2
        assert not any(isinstance(r._meta, np.ndarray) for r in (total, scanned, away))
        assert isinstance((x + 1)._meta, np.ndarray)
        lists.copies.clear()
        computed = dask.compute(total, scanned, away, x, scheduler="sync")
        # Four chunks, each copied once, and the two of a sum that was combined on the host.
        assert [copy[0] for copy in lists.copies].count("GPU") == 6
        stored = np.zeros((4, 3))
        da.store(scanned, stored, scheduler="sync")
        assert isinstance(np.asarray(total), np.ndarray)
        assert da.block([total, total]).compute().shape == (6,)
    expected = X0.sum(0), X0.cumsum(0), (X0 - X0.sum(0)) * 2, X0
    for result, right in zip(computed, expected, strict=True):
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, right)
    np.testing.assert_array_equal(stored, X0.cumsum(0))


@pytest.mark.skipif(not missing_for_gpu(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_installed_on_gpus() -> None:
    with pytest.raises(RuntimeError, match="needs CuPy and an NVIDIA GPU"):
        dc.install(chunks="cupy")
    assert not served(lazy().sum())


@pytest.mark.usefixtures("_gpus")
def test_what_gpus_do_not_take_stays_on_the_host() -> None:
    words = da.from_array(np.array([1, 2, 3], object), chunks=2)
    masked = da.ma.masked_array(da.arange(4, chunks=2), [True, False, False, False])
    with dc.installed(chunks="cupy"):
        lists.copies.clear()
        assert words.sum().compute() == 6
        assert masked.sum().compute() == 6
    assert not lists.copies


@pytest.mark.usefixtures("_gpus")
def test_the_latest_wish_decides_where_chunks_are() -> None:
    x = da.ones(4, chunks=2)
    with dc.installed(chunks="cupy"):
        with dc.installed():
            assert isinstance(x.sum()._meta, np.ndarray | np.generic)
        assert not isinstance(x.sum()._meta, np.ndarray | np.generic)
    assert isinstance(dc.sum(x)._meta, np.ndarray | np.generic)


@pytest.mark.gpu
@pytest.mark.skipif(bool(missing_for_gpu()), reason=missing_for_gpu() or "there is a GPU")
@pytest.mark.parametrize("name", FIELDS)
def test_fields_on_gpus_are_those_on_the_host(name: str) -> None:
    _, call = FIELDS[name]
    expected = call(field().compute())
    with dc.installed(chunks="cupy"):
        ours = call(field())
        assert type(ours.data._meta).__module__.startswith("cupy")
        computed = ours.compute()
    assert isinstance(computed.data, np.ndarray)
    xr.testing.assert_allclose(computed, expected, rtol=2e-5, atol=1e-6)


SCRIPT = """
import sys
import dask.array as da
print(sys.argv[1:], sys.path[0], __name__, __file__)
x = da.from_array([1.0, 2, 3], chunks=2)
print(x.sum().compute())
if "fail" in sys.argv:
    raise SystemExit(3)
"""


def test_a_script_runs_as_it_would(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = os.path.relpath(script), "--", "--a", "1"
    plain = run("", *words)
    ours = run("", "-m", "dask_coop", "run", "--report", *words)
    assert ours.stdout == plain.stdout
    assert ours.stderr.split()[-4:] == ["sum", "1", "float64", "dask_coop"]
    assert not plain.stderr
    module = run("", "-m", "dask_coop", "run", "-m", "script", env={"PYTHONPATH": str(tmp_path)})
    assert "6.0" in module.stdout


def test_a_script_that_fails_fails_and_the_report_is_printed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run("", "-m", "dask_coop", "run", "--report", str(script), "fail", fails=True)
    assert done.returncode == 3
    assert "dask_coop" in done.stderr
    script.write_text("import no_such_module")
    done = run("", "-m", "dask_coop", "run", str(script), fails=True)
    assert done.stderr.rstrip().endswith("No module named 'no_such_module'")
    done = run("", "-m", "dask_coop", "run", str(tmp_path / "none.py"), fails=True)
    assert done.returncode == 2
    assert done.stderr.startswith("dask_coop: error: there is no script")


def test_a_script_that_raises_prints_the_traceback_that_python_prints(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "def f():\n    return 1 / 0\n"
        "try:\n    f()\nexcept ZeroDivisionError as error:\n    raise ValueError('x') from error\n"
    )
    for _ in range(2):
        plain = run("", str(script), fails=True, env={"PYTHONPATH": str(tmp_path)})
        ours = [
            run("", "-m", "dask_coop", "run", *given, fails=True, env={"PYTHONPATH": str(tmp_path)})
            for given in ([str(script)], ["-m", "script"])
        ]
        assert plain.stderr
        assert [done.stderr for done in ours] == [plain.stderr] * 2
        assert [done.returncode for done in ours] == [1, 1]
        # A script that cannot be compiled has no frame.
        script.write_text("x = (\n")

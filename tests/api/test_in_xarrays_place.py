"""xarray's own tests of groups, windows and fills, with our functions in the place of others.

What xarray leaves to flox, bottleneck and Dask goes to ours, also of NumPy arrays: these are cut
into chunks before, so that all results cross some. One test of eight is run, and what differs; of
NumPy arrays all are by HYPOTHESIS_PROFILE=thorough, and of chunked ones by ``make upstream``.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import upstream
from support.compiled import THOROUGH
from support.processes import REPOSITORY, python

PLUGIN = """
import dask
import dask.array as da
import flox
import flox.core
import flox.xarray
import numpy as np
from flox.xrdtypes import NA
from xarray.computation.rolling import DataArrayRolling
from xarray.core import duck_array_ops, missing

import dask_coop as dc

used = set()
dask.config.set({"optimization.fuse.active": False})


def chunked(x):
    x = x if isinstance(x, np.ndarray | da.Array) else getattr(x, "data", np.asarray(x))
    if isinstance(x, da.Array):
        return x
    return da.from_array(x, chunks=tuple(max(1, -(-n // 3)) for n in x.shape))


def computed(result, *given):
    is_lazy = any(isinstance(x, da.Array) for x in given)
    return result if is_lazy else result.compute(scheduler="sync")


def push(array, n, axis, method=None):
    used.add("ffill")
    return computed(dc.ffill(chunked(array), axis, n), array)


def move(self, func, keep_attrs, **kwargs):
    x = self.obj.data
    function = getattr(dc, func.__name__, None)
    # xarray counts places from the other end of windows.
    if function is None or "arg" in func.__name__ or x.dtype.kind not in "biuf":
        return move_before(self, func, keep_attrs, **kwargs)
    used.add(func.__name__)
    axis, least = self.obj.get_axis_num(self.dim[0]), self.min_periods or 1
    moved = function(chunked(x), self.window[0], least, axis, center=self.center[0])
    attrs = self.obj.attrs if keep_attrs else {}
    return type(self.obj)(computed(moved, x), self.obj.coords, attrs=attrs, name=self.obj.name)


def reduce(array, *by, func, method=None, engine=None, reindex=None, fill_value=None, **kwargs):
    used.add(func)
    if fill_value is NA:
        fill_value = np.array("NaT", array.dtype) if array.dtype.kind in "mM" else np.nan
    result, *groups = dc.groupby_reduce(
        chunked(array), *by, func=func, fill_value=fill_value, **kwargs
    )
    return computed(result, array, *by), *groups


move_before = DataArrayRolling._bottleneck_reduce
DataArrayRolling._bottleneck_reduce = move
duck_array_ops.push = missing.push = push
flox.groupby_reduce = flox.core.groupby_reduce = flox.xarray.groupby_reduce = reduce


def pytest_sessionfinish():
    print()
    print("used:", *sorted(used))
"""

_ENABLED = "there is nothing to enable"
#: Without which no test of the share would take deviations, medians or counts.
ALWAYS = (
    "test_groupby_ignores_keepdims[True-std]",
    "test_groupby_reductions[numpy-median-True-True]",
    "test_groupby_count",
)

#: By module: what is selected of it, what has to be used, tests that fail and why we stand by it.
SELECTED = {
    "test_missing": (
        "ffill or bfill",
        {"ffill"},
        {
            "test_b_ffill_use_bottleneck_numbagg[ffill-None]": _ENABLED,
            "test_b_ffill_use_bottleneck_numbagg[bfill-None]": _ENABLED,
            "test_b_ffill_use_bottleneck_dask[ffill-None]": _ENABLED,
            "test_b_ffill_use_bottleneck_dask[bfill-None]": _ENABLED,
        },
    ),
    "test_rolling": (
        "TestDataArrayRolling and (bottleneck-1 or bottleneck-None or pandas_compat)",
        {"move_sum", "move_mean", "move_std", "move_min", "move_max"},
        {},
    ),
    "test_groupby": (
        "TestDataArrayGroupBy or TestDataArrayResample",
        {"sum", "mean", "first", "last", "nanmean", "nansum", "nanmedian", "nanstd", "count"},
        {},
    ),
}


def test_xarrays_own_tests_pass_but_for_known_differences(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    # Its tests are not imported here, where their marks are not known.
    folder = Path(xarray.__file__).parent / "tests"
    if not folder.exists() or not all(map(find_spec, ("flox", "bottleneck"))):
        pytest.skip("xarray is installed without its tests, or there is no flox or bottleneck")
    selected = " or ".join(f"{module} and ({names})" for module, (names, *_) in SELECTED.items())
    needed = {name for _, names, _ in SELECTED.values() for name in names}
    differences = [test for *_, known in SELECTED.values() for test in known]
    share = "" if THOROUGH else upstream.SHARE.format(every=8, named=[*ALWAYS, *differences])
    (tmp_path / "in_xarrays_place.py").write_text(PLUGIN + share)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    flaky\n    slow\n")
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    ini = str(tmp_path / "pytest.ini")
    command = ["-m", "pytest", "-q", "-rfE", "--tb=no", "-k", selected]
    command += ["-p", "in_xarrays_place", "-p", "no:cacheprovider", "-c", ini]
    command += [folder / f"{module}.py" for module in SELECTED]
    done = python(*command, timeout=400, PYTHONPATH=path, PYTEST_ADDOPTS="")
    found = re.findall(r"^(?:FAILED|ERROR) \S*::(test_\S+)", done.stdout, re.MULTILINE)
    assert set(found) == set(differences), done.stdout + done.stderr
    (used,) = re.findall(r"^used: (.*)$", done.stdout, re.MULTILINE)
    assert needed <= set(used.split()), done.stdout


def test_xarrays_tests_of_chunked_arrays_pass_with_ours_installed(tmp_path: Path) -> None:
    suite = upstream.SUITES["xarray"]
    if not (suite.find(tmp_path) / suite.tests[0]).exists():
        pytest.skip("xarray is installed without its tests")
    # `make upstream` runs all of them.
    tests = tuple(path for path in suite.tests if "rolling" not in path)
    assert upstream.check(replace(suite, every=8, tests=tests), tmp_path, ["-k", "dask"])

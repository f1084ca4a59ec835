"""Dask's own tests, with our functions installed in the place of Dask's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import dask_coop as dc

#: Loaded before the tests are.
PLUGIN = """
import gc

import dask
import dask_coop as dc

dc.install()
# As in conftest.py: less time for looking for garbage, and for fusing tasks that run once.
gc.freeze()
gc.set_threshold(5000, 10, 10)
dask.config.set({"optimization.fuse.active": False})


def pytest_sessionfinish():
    print()
    print("served:", *sorted({row.function for row in dc.report() if row.served_by == "dask_coop"}))
"""
#: By module: what is selected of it (not what takes long or is about functions that are Dask's).
SELECTED = {
    "test_percentiles": "",
    "test_stats": "",
    "test_routines": "histogram or bincount or digitize or transpose or ptp or nonzero or argwhere "
    "or compress or extract or unique or isin or searchsorted",
    "test_reductions": "not 2D",
}
#: Some functions that these tests call, which are then ours.
SERVED = {
    "test_percentiles": set(),  # All name a method to approximate them.
    "test_stats": {"mean", "moment"},
    "test_routines": {"histogram", "unique", "searchsorted", "bincount", "nonzero"},
    "test_reductions": {"sum", "nanstd", "argmax", "cumsum", "median", "nanquantile", "topk"},
}
_UNKNOWN = "integers behind chunks of unknown sizes may be some, and computing says so"
_WARNING = "a product that overflows between chunks gives no warning"
_WHOLE = "all elements of several chunks have quantiles"
#: Tests that fail with our functions, and why we stand by it.
DIFFERENCES = {
    "test_routines": {
        "test_histogram_bin_range_raises[10-None]": "a range is found where Dask wants one",
        "test_histogram_delayed_n_bins_raises_with_density": "densities take lazy numbers of bins",
        "test_histogramdd_raises_incompat_sample_chunks": "columns in chunks are rechunked",
        "test_histogramdd_raises_incompat_multiarg_chunks": "coordinates are rechunked",
        "test_histogramdd_raises_incompat_weight_chunks": "weights are rechunked",
    },
    "test_reductions": {
        "test_reductions_1D[c8]": "NumPy's variance of complex numbers as floats loses half a mean",
        "test_array_cumreduction_axis[blelloch-None-False-cumprod]": _WARNING,
        "test_array_cumreduction_axis[blelloch-None-False-nancumprod]": _WARNING,
        "test_array_cumreduction_axis[blelloch-None-True-cumprod]": _WARNING,
        "test_array_cumreduction_axis[blelloch-None-True-nancumprod]": _WARNING,
        "test_quantile_func_family_with_axis_none[quantile]": _WHOLE,
        "test_quantile_func_family_with_axis_none[nanquantile]": _WHOLE,
        "test_quantile_func_family_with_axis_none[nanpercentile]": _WHOLE,
        "test_nanquantile_all_nan": "it wants warnings to be errors, which they are not here",
        "test_empty_chunk_nanmin_nanmax[nanmin]": _UNKNOWN,
        "test_empty_chunk_nanmin_nanmax[nanmax]": _UNKNOWN,
    },
}


@pytest.mark.parametrize("module", SELECTED)
def test_dasks_own_tests_pass_but_for_known_differences(module: str, tmp_path: Path) -> None:
    spec = find_spec(f"dask.array.tests.{module}")
    if spec is None or spec.origin is None:
        pytest.skip("this Dask is installed without its tests")
    (tmp_path / "in_dasks_place.py").write_text(PLUGIN)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    path = os.pathsep.join([str(tmp_path), str(Path(dc.__file__).parents[1])])
    ini = str(tmp_path / "pytest.ini")
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-k", SELECTED[module]]
    command.append(spec.origin)
    command += ["-p", "in_dasks_place", "-p", "no:cacheprovider", "-c", ini]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    found = re.findall(r"^(?:FAILED|ERROR) \S*::(test_\S+)", done.stdout, re.MULTILINE)
    assert set(found) == set(DIFFERENCES.get(module, ())), done.stdout + done.stderr
    (served,) = re.findall(r"^served:(.*)$", done.stdout, re.MULTILINE)
    assert SERVED[module] <= set(served.split()), done.stdout

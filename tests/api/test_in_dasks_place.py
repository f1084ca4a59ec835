"""Dask's own tests, with our functions installed in the place of Dask's: a suite of upstream.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import upstream

#: Some functions that these tests call, which are then ours.
SERVED = {"mean", "moment", "histogram", "unique", "searchsorted", "bincount", "nonzero", "sum"}
SERVED |= {"nanstd", "argmax", "cumsum", "median", "nanquantile", "topk", "norm"}

#: Not what takes long, or is about functions that are Dask's; one of eight, and what differs.
#: `make upstream` runs all.
SELECTED = (
    "test_percentiles or test_stats or test_reductions and not 2D or test_routines and (histogram "
    "or bincount or digitize or transpose or ptp or nonzero or argwhere or compress or extract "
    "or unique or isin or searchsorted) "
    "or test_masked or test_linalg and norm or test_array_function and (notimpl or non_existent) "
    "or test_wrap and full_detects or test_reshape and argwhere or test_overlap and push"
)
#: Without which no test of the share would call these functions.
_BESIDES = (
    "test_arg_reductions_unknown_single_chunksize[argmax]",
    "test_moment",
    "test_nan_func_does_not_warn[nanstd]",
    "test_nonzero",
    "test_searchsorted[left-a3-3-v3-5]",
)
_LEFT_OUT = "test_reductions_2D[c8]"

#: It wants warnings to be errors, which they are not here, so it fails without ours, too.
_ALONE = "test_nanquantile_all_nan"


def test_dasks_own_tests_pass_but_for_known_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To fuse tasks that run once takes longer than it saves.
    monkeypatch.setenv("DASK_OPTIMIZATION__FUSE__ACTIVE", "False")
    suite = upstream.SUITES["dask"]
    known = {**suite.differences, _ALONE: "alone, too"}
    suite = replace(suite, every=8, differences=known, besides=_BESIDES)
    root = suite.find(tmp_path)
    if not all((root / tests).exists() for tests in suite.tests):
        pytest.skip("this Dask is installed without its tests")
    outcome = upstream.run(suite, root, ["-k", SELECTED])
    new, gone = upstream.judge(suite, [*outcome.failed], whole=True)
    assert not new, outcome.failed
    assert gone == [_LEFT_OUT]
    assert outcome.served.keys() >= SERVED

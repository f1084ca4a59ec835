"""Dask's own tests, with our functions installed in the place of Dask's: a suite of upstream.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import upstream

#: Some functions that these tests call, which are then ours.
SERVED = {"mean", "moment", "histogram", "unique", "searchsorted", "bincount", "nonzero", "sum"}
SERVED |= {"nanstd", "argmax", "cumsum", "median", "nanquantile", "topk"}

#: It wants warnings to be errors, which they are not here, so it fails without ours, too.
_ALONE = "test_nanquantile_all_nan"


def test_dasks_own_tests_pass_but_for_known_differences(tmp_path: Path) -> None:
    suite = upstream.SUITES["dask"]
    root = suite.find(tmp_path)
    if not all((root / tests).exists() for tests in suite.tests):
        pytest.skip("this Dask is installed without its tests")
    outcome = upstream.run(suite, root)
    found = {test.rpartition("::")[2] for test in outcome.failed}
    assert found == {*suite.differences, _ALONE}, outcome.failed
    assert outcome.served.keys() >= SERVED

"""Sums and means of timedelta64, which Dask has no way to give."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc


def durations(nat: bool) -> Any:
    x = np.random.default_rng(0).integers(-(1 << 60), 1 << 60, (6, 7)) // 64
    x = x.astype("m8[ns]")
    if nat:
        x[2, 3] = "NaT"
    return x


@pytest.mark.parametrize("nat", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_they_are_numpys(name: str, nat: bool) -> None:
    x = durations(nat)
    lazy = da.from_array(x, chunks=(4, 3))
    for axis in (None, 0, 1, (0, 1), -1):
        for keepdims in (False, True):
            got = getattr(dc, name)(lazy, axis=axis, keepdims=keepdims)
            want = getattr(np, name)(x, axis=axis, keepdims=keepdims)
            assert got.dtype == x.dtype
            result = got.compute()
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(result, want)


def test_a_mask_leaves_nat_out() -> None:
    x = durations(True)
    lazy, kept = da.from_array(x, chunks=(4, 3)), ~np.isnat(x)
    np.testing.assert_array_equal(dc.sum(lazy, where=kept), np.sum(x, where=kept))
    np.testing.assert_array_equal(dc.mean(lazy, axis=0, where=kept), np.mean(x, 0, where=kept))


def test_the_mean_of_nothing_is_nat() -> None:
    assert np.isnat(dc.mean(da.from_array(np.empty(0, "m8[s]"))).compute())


def test_other_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="no argument initial"):
        dc.sum(da.from_array(durations(False)), initial=3)

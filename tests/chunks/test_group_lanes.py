"""Groups along lines that are done eight at a time, held to NumPy line by line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dask_coop.algebra.monoids import COUNT, MAX, MEAN, MIN, NANMAX, NANMIN, SUM, MonoidRow
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.numpy import grouped

LENGTH = 1029
ROWS: list[tuple[MonoidRow, bool, Any]] = [
    (SUM, False, np.sum),
    (SUM, True, np.nansum),
    (MEAN, False, np.sum),
    (MEAN, True, np.nansum),
    (MIN, False, np.min),
    (MAX, False, np.max),
    (NANMIN, True, np.fmin.reduce),
    (NANMAX, True, np.fmax.reduce),
]


def chunk(lines: int, dtype: str) -> Any:
    rng = np.random.default_rng(lines)
    x = (100 * rng.standard_normal((lines, LENGTH))).astype(dtype)
    x[rng.random(x.shape) < 0.05] = np.nan
    x[2, 7], x[3, 8], x[4] = np.inf, -np.inf, 0
    return x


def lifted(row: MonoidRow, skip: bool, x: Any, codes: Any, n: int) -> Any:
    op = Operation(row, x.dtype, np.dtype("f8"), skipna=skip)
    (state,) = grouped.lift_groups([op], x, codes, n)
    return state


@pytest.fixture(name="calls")
def _calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what grows with each call of the loop."""
    loops = pytest.importorskip("dask_coop.chunks.numpy.loops.group_lanes")
    calls, original = [], loops.in_lanes
    monkeypatch.setattr(loops, "in_lanes", lambda *given: [calls.append(1), original(*given)])
    return calls


@pytest.mark.each(3)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("lines", [8, 13, 24])
@pytest.mark.parametrize(
    ("row", "skip", "function"), ROWS, ids=[f"{row.name}-{skip}" for row, skip, _ in ROWS]
)
def test_groups_of_each_line(
    calls: list[int], row: MonoidRow, skip: bool, function: Any, lines: int, dtype: str
) -> None:
    x, n = chunk(lines, dtype), 37
    codes = np.random.default_rng(1).integers(-1, n - 1, LENGTH)
    state = lifted(row, skip, x, codes, n)
    assert calls == [1]
    assert all(field.shape == (lines, n) for field in state)
    for group in range(n - 1):
        part = x[:, codes == group]
        expected = function(part.astype("f8"), axis=1)
        scale = np.where(np.isfinite(expected), np.nansum(abs(part), axis=1), 0)
        with np.errstate(invalid="ignore"):
            same = abs(state[0][:, group] - expected) <= part.shape[1] * 2.0**-52 * scale
        same |= (state[0][:, group] == expected) | np.isnan(state[0][:, group] + expected)
        np.testing.assert_array_equal(np.isnan(state[0][:, group]), np.isnan(expected))
        assert same.all()
        if row is MEAN:
            counts = (part == part).sum(1) if skip else np.full(lines, part.shape[1])
            np.testing.assert_array_equal(state[1][:, group], counts)
    # No element is in the last group, and what has no group is in none.
    for field, nothing in zip(state, row.identity(x.dtype), strict=True):
        np.testing.assert_array_equal(field[:, -1], nothing)


def test_counts_are_integers(calls: list[int]) -> None:
    x, codes = chunk(9, "f8"), np.arange(LENGTH) % 11
    (count,) = lifted(COUNT, True, x, codes, 11)
    assert calls == [1]
    assert count.dtype == "i8"
    expected = np.stack([(x == x)[:, codes == group].sum(1) for group in range(11)], 1)
    np.testing.assert_array_equal(count, expected)


@pytest.mark.parametrize("case", ["few lines", "many groups", "integers", "apart"])
def test_what_is_done_otherwise(calls: list[int], case: str) -> None:
    x, n = chunk(40, "f8"), 10
    match case:
        case "few lines":
            x = x[:7]
            x = np.concatenate([x, x], 1)
        case "many groups":
            n = x.shape[1] + 1
        case "integers":
            x = np.arange(x.size).reshape(x.shape)
        case "apart":
            x = np.concatenate([x, x], 1)[:, :LENGTH]
    codes = np.arange(x.shape[1]) % 10
    state = lifted(SUM, x.dtype.kind == "f", x, codes, n)
    assert not calls
    expected = np.stack([np.nansum(x[:, codes == group], 1) for group in range(10)], 1)
    np.testing.assert_allclose(state[0][:, :10], expected, rtol=1e-12)

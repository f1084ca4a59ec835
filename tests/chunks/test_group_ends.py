"""First and last elements of groups in NumPy chunks, taken without a sort."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dask_coop.algebra.monoids import FIRST, LAST, NO_INDEX, MonoidRow
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.numpy import grouped, loop_table

pytest.importorskip("numba")

RNG = np.random.default_rng(3)

#: Shapes of chunks, the number of axes that labels are along, and the order of axes in memory.
LAYOUTS: dict[str, tuple[tuple[int, ...], int, tuple[int, ...]]] = {
    "a line": ((200,), 1, (0,)),
    "rows": ((7, 60), 1, (0, 1)),
    "columns": ((7, 60), 1, (1, 0)),
    "many columns": ((2500, 9), 1, (1, 0)),
    "rows and columns": ((4, 5, 40), 1, (0, 2, 1)),
    "columns of two axes": ((4, 5, 40), 1, (2, 1, 0)),
    "pictures": ((6, 8, 9), 2, (0, 1, 2)),
    "pictures side by side": ((6, 8, 9), 2, (1, 2, 0)),
    "zones": ((12, 17), 2, (0, 1)),
    "transposed zones": ((12, 17), 2, (1, 0)),
    "apart": ((6, 8, 9), 2, (2, 0, 1)),
}

MISSING = {"none": 0.0, "few": 0.1, "most": 0.9, "all": 1.0}


def chunk(layout: str, dtype: str, missing: float) -> Any:
    shape, _, order = LAYOUTS[layout]
    x = (100 * RNG.standard_normal([shape[d] for d in order])).astype(dtype)
    if x.dtype.kind in "fc":
        x[RNG.random(x.shape) < missing] = np.nan
        # Lines without any, as land has.
        x.reshape(-1)[: x.size // 5] = np.nan if missing else 1
    return x.transpose(np.argsort(order))


def ends(row: MonoidRow, skip: bool, x: Any, codes: Any, n: int) -> tuple[Any, Any]:
    """Return values and indices, one element after the other."""
    kept = x.shape[: x.ndim - codes.ndim]
    lines, flat = x.reshape(math.prod(kept), codes.size), codes.reshape(-1)
    value, index = np.zeros((len(lines), n), x.dtype), np.full((len(lines), n), NO_INDEX)
    for at, line in enumerate(lines):
        for i in range(codes.size) if row is LAST else reversed(range(codes.size)):
            if flat[i] >= 0 and not (skip and np.isnan(line[i])):
                value[at, flat[i]], index[at, flat[i]] = line[i], i
    return value.reshape(*kept, n), index.reshape(*kept, n)


@pytest.fixture(autouse=True)
def _loops_for_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loop_table.WORTH_COMPILING, "groups", 1)


@pytest.fixture(name="sorts")
def _sorts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what grows with each sort."""
    calls, original = [], grouped._sorted
    monkeypatch.setattr(grouped, "_sorted", lambda *given: [calls.append(1), original(*given)][1])
    return calls


def assert_are_ends(row: MonoidRow, skip: bool, x: Any, codes: Any, n: int) -> None:
    op = Operation(row, x.dtype, x.dtype, skipna=skip)
    (state,) = grouped.lift_groups([op], x, codes, n)
    assert_is_state(state, row, skip, x, codes, n)


def assert_is_state(state: Any, row: MonoidRow, skip: bool, x: Any, codes: Any, n: int) -> None:
    value, index = ends(row, skip, x, codes, n)
    assert [field.dtype for field in state] == [x.dtype, np.dtype("i8")]
    np.testing.assert_array_equal(state[1], index)
    # Where there is no element, only the index says so.
    some = index != NO_INDEX
    np.testing.assert_array_equal(state[0][some], value[some])


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("skip", [False, True], ids=["all", "skipna"])
@pytest.mark.parametrize("row", [FIRST, LAST], ids=["first", "last"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_ends_of_groups(
    sorts: list[int], layout: str, row: MonoidRow, skip: bool, missing: str, dtype: str
) -> None:
    x = chunk(layout, dtype, MISSING[missing])
    along = x.shape[x.ndim - LAYOUTS[layout][1] :]
    # Some groups have no element, and some elements no group.
    for n in (1, 7, 2 * np.prod(along, dtype=int)):
        codes = RNG.integers(-1, n if n < 7 else n - 1, along)
        assert_are_ends(row, skip, x, codes, n)
    ordered = np.sort(RNG.integers(0, 5, along), axis=None).reshape(along)
    assert_are_ends(row, skip, x, ordered, 5)
    # Axes of labels that are not in C order are sorted, if elements are missing.
    out_of_order = "transposed" in layout
    assert not sorts or (out_of_order and skip and missing != "none")


@pytest.mark.parametrize("dtype", ["?", "i2", "u8", "f2", "c8", "c16"])
@pytest.mark.parametrize("row", [FIRST, LAST], ids=["first", "last"])
def test_elements_of_any_dtype(sorts: list[int], row: MonoidRow, dtype: str) -> None:
    x, codes = chunk("rows", dtype, 0.3), RNG.integers(-1, 5, 60)
    assert_are_ends(row, False, x, codes, 6)
    assert not sorts
    if x.dtype.kind in "fc":
        assert_are_ends(row, True, x, codes, 6)


def test_codes_that_are_broadcast_and_chunks_that_are_views() -> None:
    whole = chunk("columns of two axes", "f8", 0.3)
    codes = np.broadcast_to(RNG.integers(-1, 4, 20), (5, 20))
    for row in (FIRST, LAST):
        assert_are_ends(row, True, whole[::-1, :, ::2], codes, 4)
        assert_are_ends(row, True, whole[1:, ::2, ::-2], codes[:3], 4)
        assert_are_ends(row, True, np.broadcast_to(whole[0, 0, :20], (3, 5, 20)), codes, 4)


def test_no_elements_and_no_groups() -> None:
    for shape in ((0,), (3, 0), (0, 4)):
        x = np.zeros(shape)
        assert_are_ends(FIRST, True, x, np.zeros(shape[-1:], "i8"), 2)
    (state,) = grouped.lift_groups(
        [Operation(FIRST, np.dtype("f8"), np.dtype("f8"))], np.ones((3, 4)), np.full(4, -1), 0
    )
    assert state[0].shape == (3, 0)


@pytest.mark.parametrize("skip", [False, True])
def test_small_chunks_and_none_of_numba_have_the_same(
    monkeypatch: pytest.MonkeyPatch, skip: bool
) -> None:
    monkeypatch.setitem(loop_table.WORTH_COMPILING, "groups", 1 << 30)
    for layout in LAYOUTS:
        x = chunk(layout, "f8", 0.4)
        codes = RNG.integers(-1, 6, x.shape[x.ndim - LAYOUTS[layout][1] :])
        for row in (FIRST, LAST):
            assert_are_ends(row, skip, x, codes, 7)


def test_several_operations_share_a_call() -> None:
    x, codes = chunk("rows", "f8", 0.2), RNG.integers(0, 3, 60)
    rows = [(FIRST, True), (LAST, False), (LAST, True)]
    ops = [Operation(row, x.dtype, x.dtype, skipna=skip) for row, skip in rows]
    states = grouped.lift_groups(ops, x, codes, 3)
    for (row, skip), state in zip(rows, states, strict=True):
        assert_is_state(state, row, skip, x, codes, 3)

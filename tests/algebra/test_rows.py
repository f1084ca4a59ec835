"""The facts that stand in the rows of the table of monoids, against what is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.base import tokenize

import dask_coop as dc
from dask_coop.algebra import reproducible as digits
from dask_coop.algebra.bins import Grid, Integers, find_bins
from dask_coop.algebra.counted import counted
from dask_coop.algebra.merges import settle
from dask_coop.algebra.monoids import (
    ALL,
    ANY,
    ARGMAX,
    ARGMIN,
    COUNT_NONZERO,
    COUNTS,
    FIRST_MAX,
    FIRST_MIN,
    LOGADDEXP,
    MAX,
    MEAN,
    MIN,
    MINMAX,
    MOMENTS,
    MONOIDS,
    NANMAX,
    NANMIN,
    PROD,
    REPRODUCIBLE_COMPLEX_MEAN,
    REPRODUCIBLE_COMPLEX_SUM,
    REPRODUCIBLE_MEAN,
    REPRODUCIBLE_SUM,
    SQUARES,
    SUM,
    VAR,
    MonoidRow,
)
from dask_coop.algebra.operation import Operation, bind, compensated, reproducible
from dask_coop.chunks.numpy import backend

DTYPES = {"b": "?", "i": "bhil", "u": "BHIL", "f": "efd", "c": "FD"}


def dtypes(monoid: MonoidRow) -> list[np.dtype[Any]]:
    return [np.dtype(letter) for kind in monoid.kinds for letter in DTYPES[kind]]


def operation(monoid: MonoidRow, dtype: np.dtype[Any]) -> Operation:
    return bind(monoid, dtype, monoid.output(dtype), monoid.name)


def reproducibly(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: function(x, reproducible=True)


#: The public function that reduces, or scans, by a row and nothing else.
PUBLIC: dict[MonoidRow, Callable[[Any], Any]] = {
    SUM: dc.sum,
    SQUARES: dc.norm,
    PROD: dc.prod,
    MIN: dc.min,
    MAX: dc.max,
    NANMIN: dc.nanmin,
    NANMAX: dc.nanmax,
    ARGMIN: dc.argmin,
    ARGMAX: dc.argmax,
    FIRST_MIN: dc.min,
    FIRST_MAX: dc.nanmax,
    ANY: dc.any,
    ALL: dc.all,
    COUNT_NONZERO: dc.count_nonzero,
    MEAN: dc.mean,
    VAR: dc.var,
    REPRODUCIBLE_SUM: reproducibly(dc.sum),
    REPRODUCIBLE_MEAN: reproducibly(dc.mean),
    REPRODUCIBLE_COMPLEX_SUM: reproducibly(dc.sum),
    REPRODUCIBLE_COMPLEX_MEAN: reproducibly(dc.mean),
    LOGADDEXP: dc.logcumsumexp,
}


@pytest.mark.parametrize("monoid", PUBLIC, ids=lambda monoid: monoid.name)
def test_results_have_the_dtype_that_the_row_says(monoid: MonoidRow) -> None:
    for dtype in dtypes(monoid):
        lazy = PUBLIC[monoid](da.ones(3, dtype=dtype, chunks=2))
        assert lazy.dtype == monoid.output(dtype)
        assert lazy.compute(scheduler="synchronous").dtype == lazy.dtype


def test_the_other_rows_have_several_results_or_stand_for_these() -> None:
    twins = {row.compensated for row in MONOIDS}
    assert set(MONOIDS) - PUBLIC.keys() - twins == {MINMAX, MOMENTS}


@pytest.mark.parametrize("monoid", MONOIDS, ids=lambda monoid: monoid.name)
def test_a_neutral_element_changes_no_state(monoid: MonoidRow) -> None:
    for dtype in dtypes(monoid):
        op = operation(monoid, dtype)
        if op.neutral is None:
            continue
        x = np.arange(1, 6).astype(op.element)
        some = np.array([True, False, True, True, False])
        replaced = np.where(some, x, op.neutral).astype(op.element)
        plain = backend.lift(op, x[some], (0,))
        for state in (backend.lift(op, replaced, (0,)), backend.lift(op, x, (0,), some)):
            for field, a, b in zip(monoid.fields, state, plain, strict=True):
                # What is left out lies between, so that a maximum moves.
                if field.role != "index":
                    np.testing.assert_allclose(a, b, rtol=1e-15, err_msg=field.name)


def test_a_mask_goes_along_where_no_element_is_neutral() -> None:
    for monoid in MONOIDS:
        op = operation(monoid, dtypes(monoid)[0])
        assert all(hasattr(op, option) for option in monoid.options)
        assert "masked" not in monoid.options or op.neutral is None


TWINS = [
    (row, twin)
    for row in (*MONOIDS, COUNTS)
    for twin in (row.compensated, *row.reproducible)
    if twin
]


@pytest.mark.parametrize(
    ("row", "twin"), TWINS, ids=[f"{row.name}-{twin.name}" for row, twin in TWINS]
)
def test_twins_sum_as_the_row_that_names_them(row: MonoidRow, twin: MonoidRow) -> None:
    assert twin.options == row.options
    choose, finish = (reproducible, as_number) if twin.has_digits else (compensated, settled)
    for dtype in map(np.dtype, "dD"):
        if dtype.kind not in twin.kinds:
            continue
        op = operation(row, dtype)
        assert choose(op) == replace(op, monoid=twin)
        if row is COUNTS:
            continue
        x = np.random.default_rng(0).normal(size=(50, 2)).view("D")[:, 0].astype("c16")
        x = x if dtype.kind == "c" else x.real.copy()
        plain = backend.lift(op, x, (0,))
        exact = finish(choose(op), backend.lift(choose(op), x, (0,)))
        for found, expected in zip(exact, plain, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-14)


def as_number(op: Operation, state: Any) -> Any:
    """Return the sum that digits stand for, and the count if there is one."""
    parts = 2 if op.element.kind == "c" else 1
    return digits.total(state, op.element), *state[1 + parts * (1 + digits.DIGITS) :]


def settled(op: Operation, state: Any) -> Any:
    # That of a mean is a field which the row lacks.
    return settle(state) if op.monoid.has_excess else state[:-1]


def test_sums_of_integers_need_no_twin() -> None:
    for dtype in map(np.dtype, "?bBlL"):
        op = operation(SUM, dtype)
        assert compensated(op) is reproducible(op) is op


def test_facts_are_no_part_of_what_a_row_is() -> None:
    own = MonoidRow("own", SUM.fields, "f", "Sum")
    other = replace(own, output=np.dtype, options=("skipna",), fills_masked=True, compensated=SUM)
    assert own == other
    assert hash(own) == hash(other)
    assert tokenize(own) == tokenize(other)


def test_names_of_rows_that_count_are_the_same_in_every_process() -> None:
    assert counted(SUM).__dask_tokenize__() == ("Counted", ("Monoid", "SUM"))


def test_kinds_of_bins_answer_the_same_questions() -> None:
    bins = find_bins(3, (0, 1), np.dtype("f8"))
    plain, along = Grid((bins,)), Grid((bins, bins), flow=True, axes=(1,))
    assert (plain.entries, plain.ndim, plain.flow, plain.has_lines) == (3, 1, False, False)
    assert (along.entries, along.ndim, along.flow, along.has_lines) == (25, 2, True, True)
    assert along.lines((4, 5, 6)) == ((0, 2), (1,))
    integers = Integers(7)
    assert (integers.entries, integers.ndim, integers.flow) == (None, 1, False)
    assert not integers.has_lines
    assert integers.lines((4, 5)) == plain.lines((4, 5)) == ((), (0, 1))

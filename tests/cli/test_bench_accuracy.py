"""The benchmark of accuracy: its page and plots show its results, its errors are errors."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from benchmarks.systems import accuracy


@pytest.mark.parametrize("work", accuracy.WORKS)
def test_what_is_exact_is_that_of_fractions(work: str) -> None:
    x = accuracy.samples(work, 500)
    exact = [Fraction(float(v)) for v in x]
    expected = sum(exact, Fraction())
    if work.startswith("var"):
        mean = expected / len(x)
        expected = sum(((v - mean) ** 2 for v in exact), Fraction()) / len(x)
    assert accuracy.exact(work, x) == pytest.approx(float(expected), rel=4e-16)


def test_errors_are_in_units_of_a_rounding() -> None:
    assert accuracy.error(1.0, 1.0, "f8") == 0
    assert accuracy.error(1 + 2**-52, 1.0, "f8") == 2
    assert accuracy.error(np.float32(1 + 2**-23), 1.0, "f4") == 2


def test_rows_have_all_works_and_reproducible_sums_do_not_vary() -> None:
    rows = [*accuracy.errors((100,), gpu=False)]
    assert {(row["work"], row["by"]) for row in rows} == {
        (work, by)
        for work in accuracy.WORKS
        for by in (accuracy.NUMPY, accuracy.DASK, accuracy.OURS)
    }
    assert all(row["error"] < 100 for row in rows)
    (same,) = (
        row for row in accuracy.spread(2000, 5, gpu=False) if row["by"] == accuracy.REPRODUCIBLE
    )
    assert len(set(same["off"])) == 1
    assert len(same["chunks"]) == 5

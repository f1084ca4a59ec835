"""What a multi-chunk launch does not take, and in which words; none of it needs a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dask_coop.algebra.bins import Grid, Integers, find_bins
from dask_coop.algebra.central_moments import moments_up_to
from dask_coop.algebra.monoids import COUNTS, REPRODUCIBLE_COUNTS, SUM
from dask_coop.algebra.operation import Operation, bind
from dask_coop.algebra.registers import registers
from dask_coop.algebra.scan_spec import ScanSpec, segmented
from dask_coop.chunks.cupy import eligibility
from dask_coop.chunks.distinct import distinct

F8 = np.dtype("f8")
ADD = bind(SUM, F8, F8, "sum")
ORDERED = replace(ADD, monoid=segmented(SUM))
OF_A_USER = replace(ADD, monoid=replace(SUM, name="mine", lift=lambda x: (x,)))
TABLE = bind(COUNTS, F8, np.dtype("i8"), "histogram")
BINS = find_bins(3, (0, 1), F8)


def test_sums_suit() -> None:
    assert eligibility.objection_to_operation(ADD) is None
    assert eligibility.objection_to_operation(OF_A_USER) is None
    assert eligibility.objection_to_scan(ADD, ScanSpec(0, exclusive=True, reverse=True)) is None
    assert eligibility.objection_to_histogram(TABLE, Grid((BINS,), omit=True)) is None


@pytest.mark.parametrize(
    ("op", "spec", "text"),
    [
        (ORDERED, None, "segmented sum does not commute"),
        (ORDERED, ScanSpec(0), "segmented sum does not commute"),
        (
            replace(ADD, monoid=distinct()),
            None,
            "the number of distinct values is not known in advance",
        ),
        (OF_A_USER, ScanSpec(0), "mine is not a monoid of the library"),
        (ADD, ScanSpec(0, initial=True), "its first chunk is longer by one"),
    ],
)
def test_operations_that_do_not_suit(op: Operation, spec: ScanSpec | None, text: str) -> None:
    if spec is None:
        found = eligibility.objection_to_operation(op)
    else:
        found = eligibility.objection_to_scan(op, spec)
    assert found == eligibility.Objection(text)
    assert str(found) == text


def test_moments_of_a_high_order_do_not_suit() -> None:
    found = eligibility.objection_to_operation(replace(ADD, monoid=moments_up_to(4)))
    assert str(found) == "moments of a high order take several steps a chunk"


def test_registers_of_hashes_do_not_suit() -> None:
    found = eligibility.objection_to_operation(replace(ADD, monoid=registers(8)))
    assert str(found) == "hashes are in memory, block by block of a chunk"


@pytest.mark.parametrize(
    ("op", "grid", "text"),
    [
        (replace(TABLE, monoid=REPRODUCIBLE_COUNTS), Grid((BINS,)), "reproducible sums of weights"),
        (TABLE, Integers(0), "the largest integer is not known in advance"),
        (TABLE, Grid((BINS, BINS)), "it has more than one table of bins"),
        (TABLE, Grid((BINS,), axes=(0,)), "it has more than one table of bins"),
        (TABLE, Grid((BINS,), flow=True), "it has more than one table of bins"),
    ],
)
def test_histograms_that_do_not_suit(op: Operation, grid: Any, text: str) -> None:
    assert text in str(eligibility.objection_to_histogram(op, grid))


def test_what_keeps_a_team_from_launches_keeps_all_chunks_from_them() -> None:
    team = SimpleNamespace(objection="the GPUs differ")
    assert str(eligibility.objection_to_team(team)) == "the GPUs differ"
    assert str(eligibility.objection_to_chunks([np.ones(2)], team)) == "the GPUs differ"
    assert eligibility.objection_to_team(SimpleNamespace(objection="")) is None


class OfCupy(SimpleNamespace):
    """An array on a GPU."""


@pytest.mark.parametrize(
    ("devices", "dtypes", "team", "text"),
    [
        ((0, 1), ("f8", "f8"), None, "the chunks lie on several GPUs"),
        ((0, 1), ("f8", "f8"), (0, 1), "None"),
        ((0, 2), ("f8", "f8"), (0, 1), "chunks lie on GPU 2, which takes no part in launches"),
        ((0, 1), ("f8", "f8"), "they differ", "they differ"),
        ((0, 0), ("f8", "f4"), (0,), "its chunks are of several dtypes"),
        ((1, 1), ("f8", "f8"), (1,), "None"),
    ],
)
def test_chunks_of_a_process(
    monkeypatch: pytest.MonkeyPatch, devices: Any, dtypes: Any, team: Any, text: str
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=OfCupy))
    xs = [
        OfCupy(device=SimpleNamespace(id=device), dtype=np.dtype(dtype))
        for device, dtype in zip(devices, dtypes, strict=True)
    ]
    if team is not None:
        objection = team if isinstance(team, str) else ""
        team = SimpleNamespace(ordinals=team, objection=objection)
    assert str(eligibility.objection_to_chunks_together(xs, team)) == text


def test_chunks_are_of_the_declared_dtype() -> None:
    xs = [SimpleNamespace(dtype=np.dtype(dtype)) for dtype in ("f4", "f8")]
    objection = str(eligibility.objection_to_declared(xs, np.dtype("f4")))
    assert objection == "a chunk has dtype float64, and its array declares float32"
    assert eligibility.objection_to_declared(xs[:1], np.dtype(">f4")) is None
    assert eligibility.objection_to_declared(xs, None) is None

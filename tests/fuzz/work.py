"""One process's share of a run: draw, judge, and cut down what fails."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import dask.array as da

from fuzz.case import Case
from fuzz.families import FAMILIES, draw_case, family_of
from fuzz.judge import Failure, judge
from fuzz.shrink import shrink

#: The most failures of one function that are cut down, and after how many in a row to give up.
SHOWN, HOPELESS = 3, 100


@dataclass(frozen=True)
class Found:
    """A failure as it is shown."""

    seed: int
    index: int
    family: str
    function: str
    kind: str
    dtype: str
    planning: bool
    details: str
    code: str

    def __str__(self) -> str:
        """Return what a person needs to see it again."""
        planning = "DASK_ARRAY__QUERY_PLANNING=true " if self.planning else ""
        return (
            f"{self.family}: {self.function} of {self.dtype}: {self.kind}: {self.details}\n"
            f"    {self.code}\n"
            f"    again: {planning}PYTHONPATH=tests python -m fuzz {self.seed} {self.index}"
        )


@dataclass
class Tally:
    """What a run has come to."""

    cases: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    #: Cases by the tens of seconds in which they ran.
    pace: Counter[int] = field(default_factory=Counter)


def indices(seed: int, first: int, step: int, only: tuple[str, ...]) -> Iterator[int]:
    """Yield the numbers of this process's cases."""
    index = first
    while True:
        if not only or family_of(seed, index) in only:
            yield index
        index += step


def work(
    xp: ModuleType,
    seed: int,
    *,
    first: int = 0,
    step: int = 1,
    only: tuple[str, ...] = (),
    seconds: float = float("inf"),
    cases: float = float("inf"),
    patience: float = 15,
    started: Callable[[int], None] = lambda index: None,
    shown: Callable[[Found], None] = lambda found: None,
) -> Tally:
    """Judge cases until time is up or there were enough.

    Parameters
    ----------
    xp : module
        NumPy or CuPy: the kind of chunks.
    seed, first, step : int
        The numbers of the cases: every `step`-th from `first` on.
    only : tuple of str
        The families to keep to; by default all.
    seconds, cases : float
    patience : float
        The seconds that cutting down one failure may take.
    started : callable
        Is given the index of every case before it runs.
    shown : callable
        Is given every failure that has been cut down.
    """
    if unknown := set(only) - FAMILIES.keys():
        raise ValueError(f"there is no family {min(unknown)!r}, only {', '.join(FAMILIES)}")
    tally, seen, in_a_row = Tally(), Counter[Any](), 0
    start = time.monotonic()
    for index in indices(seed, first, step, only):
        if time.monotonic() - start > seconds or sum(tally.cases.values()) >= cases:
            break
        started(index)
        case = draw_case(seed, index)
        failure = judge(case, xp)
        tally.cases[case.family] += 1
        tally.pace[int(time.monotonic() - start) // 10] += 1
        in_a_row = in_a_row + 1 if failure else 0
        if failure:
            tally.failures[case.family] += 1
            where, what = case.function, (case.function, failure.kind, case.x.dtype)
            seen[where] += what not in seen
            seen[what] += 1
            if seen[what] == 1 and seen[where] <= SHOWN:
                found = cut_down(case, failure, xp, seed, index, patience)
                tally.found.append(found)
                shown(found)
        if in_a_row == HOPELESS:
            break
    return tally


def cut_down(
    case: Case, failure: Failure, xp: ModuleType, seed: int, index: int, patience: float = 15
) -> Found:
    """Return the least case that fails alike."""

    def fails(simpler: Case) -> bool:
        other = judge(simpler, xp)
        return other is not None and other.kind == failure.kind

    least = shrink(case, fails, patience)
    details = judge(least, xp) or failure
    return Found(
        seed,
        index,
        case.family,
        case.function,
        failure.kind,
        case.x.dtype.name,
        bool(da.array_expr_enabled()),
        details.details,
        least.code(xp),
    )


def chunks_of(name: str) -> ModuleType:
    """Return NumPy or CuPy; "auto" is CuPy where there is a GPU."""
    if name == "auto":
        from conftest import missing_for_gpu

        name = "numpy" if missing_for_gpu() else "cupy"
    if name not in ("numpy", "cupy"):
        raise ValueError(f"chunks are of numpy, cupy or auto, got {name!r}")
    return importlib.import_module(name)

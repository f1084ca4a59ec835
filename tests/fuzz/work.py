"""One process's share of a run: draw, judge, and cut down what fails."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType

import dask.array as da
import numpy as np

from dask_coop.cli import info
from fuzz.case import Case
from fuzz.engines import engine_of
from fuzz.families import FAMILIES, draw_case, family_of
from fuzz.judge import Failure, judge
from fuzz.shrink import shrink

#: The most failures of one kind that are cut down, by function and in all.
SHOWN, SHOWN_IN_ALL = 2, 12


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
    engine: str
    seconds: float
    details: str
    code: str
    #: Whether it is one of the first of its kind, which are cut down.
    first: bool

    def __str__(self) -> str:
        """Return what a person needs to see it again."""
        planning = "DASK_ARRAY__QUERY_PLANNING=true " if self.planning else ""
        engine = f"FUZZ_ENGINES={self.engine} "
        return (
            f"{self.family}: {self.function} of {self.dtype} by {self.engine}: {self.kind}: "
            f"{self.details} (after {self.seconds:.0f} s)\n"
            f"    {self.code}\n"
            f"    again: {planning}{engine}PYTHONPATH=tests python -m fuzz {self.seed} {self.index}"
        )


@dataclass
class Tally:
    """What a run has come to."""

    cases: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    #: Cases by engine and family, with a space between.
    engines: Counter[str] = field(default_factory=Counter)
    #: What this machine has no libraries for.
    skipped: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    #: Cases by the tens of seconds in which they ran.
    pace: Counter[int] = field(default_factory=Counter)


def indices(seed: int, first: int, step: int, only: tuple[str, ...]) -> Iterator[int]:
    """Yield the numbers of this process's cases."""
    index = first
    while only:
        if family_of(seed, index) in only:
            yield index
        index += step


def work(
    xp: ModuleType,
    seed: int,
    *,
    first: int = 0,
    step: int = 1,
    only: tuple[str, ...] = (),
    engines: tuple[str, ...] = ("graph",),
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
    engines : tuple of str
        The engines to draw from.
    seconds, cases : float
    patience : float
        The seconds that cutting down one failure may take.
    started : callable
        Is given the index of every case before it runs.
    shown : callable
        Is given every failure, the first ones of a kind cut down.
    """
    if unknown := set(only) - FAMILIES.keys():
        raise ValueError(f"there is no family {min(unknown)!r}, only {', '.join(FAMILIES)}")
    names = tuple(
        name for name in only or FAMILIES if xp is np or not FAMILIES[name].of_numpy_chunks
    )
    tally, shown_before = Tally(), Shown()
    start = time.monotonic()
    for index in indices(seed, first, step, names):
        took = time.monotonic() - start
        if took > seconds or sum(tally.cases.values()) >= cases:
            break
        started(index)
        case = draw_case(seed, index)
        engine = engine_of(case, seed, index, xp, engines)
        by = [engine]
        try:
            failure = judge(case, xp, engine, by.append)
        except ImportError:
            tally.skipped[case.family] += 1
            continue
        tally.cases[case.family] += 1
        tally.engines[f"{by[-1]} {case.family}"] += 1
        tally.pace[int(took) // 10] += 1
        if failure is None:
            continue
        tally.failures[case.family] += 1
        lost = is_lost(xp)
        is_new = lost or shown_before.is_new(case.function, failure.kind, case.x.dtype.name)
        least = case
        if is_new and not lost:
            least = shrink(case, fails_alike(failure, xp, engine), patience)
            failure = judge(least, xp, engine) or failure
        found = Found(
            seed,
            index,
            case.family,
            case.function,
            failure.kind,
            case.x.dtype.name,
            bool(da.array_expr_enabled()),
            engine,
            took,
            failure.details,
            least.code(xp),
            is_new,
        )
        tally.found.append(found)
        shown(found)
        if lost:
            break
    return tally


class Shown:
    """What has been shown."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str, str]] = set()
        self._counts = Counter[tuple[str, str]]()

    def is_new(self, function: str, kind: str, dtype: str) -> bool:
        """Tell whether a failure is worth showing after the others, and count it among them."""
        if (function, kind, dtype) in self._seen or len(self._seen) == SHOWN_IN_ALL:
            return False
        if self._counts[function, kind] == SHOWN:
            return False
        self._seen.add((function, kind, dtype))
        self._counts[function, kind] += 1
        return True


def is_lost(xp: ModuleType) -> bool:
    """Tell whether the GPU answers nothing more in this process, as after a wild address."""
    if xp.__name__ == "numpy":
        return False
    try:
        xp.cuda.runtime.deviceSynchronize()
    except xp.cuda.runtime.CUDARuntimeError:
        return True
    return False


def fails_alike(failure: Failure, xp: ModuleType, engine: str = "graph") -> Callable[[Case], bool]:
    """Return what tells whether another case fails in the same way."""

    def fails(simpler: Case) -> bool:
        other = judge(simpler, xp, engine)
        if other is None or other.kind != failure.kind:
            return False
        # An error of another argument begins with other words; numbers and names come later.
        words = (found.details.split()[:2] for found in (other, failure))
        return not failure.kind.startswith("raises") or next(words) == next(words)

    return fails


def chunks_of(name: str) -> ModuleType:
    """Return NumPy or CuPy; "auto" is CuPy where there is a GPU."""
    if name == "auto":
        name = "cupy" if info.cupy_gpus() else "numpy"
    if name not in ("numpy", "cupy"):
        raise ValueError(f"chunks are of numpy, cupy or auto, got {name!r}")
    return importlib.import_module(name)

"""The monoids of runs: elements of a mask that are true one after another.

None of them commutes. The state of a reduction is the number n of its elements, the run that it
begins with, the run that it ends with, and a statistic of its runs. Where two states meet, the last
run of the first and the first run of the second are one::

    T T F T  |  T T F      ->      T T F T T T F
    (4, 2, 1, longest 2)  (3, 2, 0, longest 2)      (7, 2, 0, longest 3)

The lengths of runs take two scans, by `RUN_PLACES` and `RUN_LENGTHS` of the table. The first finds
the place of an element in its run, which depends on the element before it: 0 if the element is
false, 1 if it is the first one, 2 if it is a later one. Its state tells the last two elements. The
second scan goes from the end to the beginning and measures::

    mask     T T T F T        places   1 2 2 0 1
    counts   3 2 1 0 1        lengths  3 - - 0 1

Its state is the length of the run at the last scanned element, whether the run reaches back to the
first scanned one, and whether it is open, that is, goes on at the next element. For lengths at the
ends of runs, both scans go the other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import Field, MonoidRow, State, zero

#: A statistic of the runs of at least some length: the longest, their number, the number of their
#: elements, the index of the first element of the first, of the last element of the last.
Statistic = Literal["longest", "runs", "elements", "first", "last"]


def _nowhere(dtype: np.dtype[Any]) -> Any:
    return dtype.type(-1)


@dataclass(frozen=True, eq=False)
class Runs(MonoidRow):
    """The monoid of a statistic of runs of at least `least` elements."""

    statistic: Statistic = "longest"
    least: int = 1

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return runs, (self.statistic, self.least)

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "Runs", self.statistic, self.least

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        n, begins, ends, value = a
        b_n, b_begins, b_ends, b_value = b
        both, long = ends + b_begins, ends + b_begins >= self.least
        match self.statistic:
            case "longest":
                value = np.maximum(np.maximum(value, b_value), both)
            case "runs" | "elements":
                value = value + b_value + self._counted(both)
                value = value - self._counted(ends) - self._counted(b_begins)
            case "first":
                later = choose(long, n - ends, choose(b_value < 0, b_value, n + b_value))
                value = choose(value < 0, later, value)
            case "last":
                earlier = choose(long, n + b_begins - 1, value)
                value = choose(b_value < 0, earlier, n + b_value)
        begins = choose(begins == n, n + b_begins, begins)
        return n + b_n, begins, choose(b_ends == b_n, ends + b_n, b_ends), value

    def _counted(self, length: Any) -> Any:
        return (length >= self.least) * (length if self.statistic == "elements" else np.int64(1))

    def finish(self, state: State) -> Any:
        """Return the statistic; indices are float64, NaN where there is no such run."""
        value = state[3]
        return choose(value < 0, np.nan, value) if self.statistic in ("first", "last") else value


@lru_cache
def runs(statistic: Statistic, least: int) -> Runs:
    """Return the monoid of a statistic of runs of at least `least` elements."""
    is_place = statistic in ("first", "last")
    fields = (
        *(Field(name, "count", zero, np.add) for name in ("n", "begins", "ends")),
        Field("value", "count", _nowhere if is_place else zero, np.add),
    )
    return Runs(
        f"runs_{statistic}_{least}",
        fields,
        "b",
        "Runs",
        commutative=False,
        arguments=(f"RunStatistic::{statistic}", str(least)),
        statistic=statistic,
        least=least,
    )

"""Base sums on the host: the same order of combinations, told by states that write it down."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop.algebra.monoids import COMPENSATED_SUM, LOGADDEXP, PROD, SUM, MonoidRow, State
from dask_coop.algebra.scan_spec import segmented
from dask_coop.graph.prefixes import GROUP, by_groups, sequential, stacked

#: How many states, and how many of them are a group.
COUNTS = [
    *((count, GROUP) for count in (0, 1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 1056, 1057, 1100)),
    *((count, 2) for count in (2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 32, 33, 100)),
    *((count, 3) for count in (3, 4, 9, 10, 27, 28, 39, 40, 41, 100)),
]


def written(a: State, b: State) -> State:
    """Combine texts to a text that tells in which order they were combined."""
    return ("(" + a[0] + b[0] + ")",)


def texts(count: int) -> list[str]:
    return [f"<{i}>" for i in range(count)]


def one_by_one(combine: Any, states: Sequence[State], size: int = GROUP) -> list[State]:
    """Return the prefixes that `by_groups` makes of states on the host."""
    made = by_groups(
        states,
        size,
        lambda level, g, group: reduce(combine, group),
        lambda level, g, group, above, at: sequential(combine, group, above and above[at]),
    )
    return [prefix for group in made for prefix in group]


@pytest.mark.parametrize(("count", "size"), COUNTS)
def test_prefixes_hold_all_states_before_in_their_order(count: int, size: int) -> None:
    found = one_by_one(written, [(text,) for text in texts(count)], size)
    plain = [text.replace("(", "").replace(")", "") for (text,) in found]
    assert plain == ["".join(texts(i + 1)) for i in range(count)]


@pytest.mark.parametrize(("count", "size", "levels"), [(1100, GROUP, 3), (300, 2, 9), (300, 7, 3)])
def test_a_prefix_is_combined_of_a_group_of_each_level(count: int, size: int, levels: int) -> None:
    deepest = max(
        len(text) - len(text.lstrip("("))
        for (text,) in one_by_one(written, [(t,) for t in "x" * count], size)
    )
    assert size < deepest <= 2 * size * levels


@pytest.mark.parametrize(("count", "size"), COUNTS[1:])
def test_stacks_are_combined_in_the_order_of_single_states(count: int, size: int) -> None:
    (found,) = stacked(written, (np.array(texts(count), object),), size)
    expected = one_by_one(written, [(text,) for text in texts(count)], size)
    assert found.tolist() == [text for (text,) in expected]


def test_a_stack_of_no_state_has_no_prefix() -> None:
    (found,) = stacked(written, (np.empty((0, 3)),))
    assert found.shape == (0, 3)


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize(
    ("monoid", "dtype"),
    [
        *((monoid, "f8") for monoid in (SUM, PROD, COMPENSATED_SUM, LOGADDEXP, segmented(SUM))),
        *((monoid, "c16") for monoid in (SUM, PROD, COMPENSATED_SUM)),
    ],
    ids=lambda given: getattr(given, "name", given),
)
def test_stacks_give_the_bits_of_single_states(
    monoid: MonoidRow, dtype: str, shape: tuple[int, ...]
) -> None:
    rng, size = np.random.default_rng(len(monoid.name)), (1300, *shape)
    turns = np.exp(1j * rng.uniform(0, 7, size)) if dtype == "c16" else 1
    drawn = {"b": rng.random(size) < 0.01, dtype[0]: rng.normal(1, 0.3, size) * turns}
    fields = tuple(drawn[of.kind].astype(of) for of in monoid.dtypes(np.dtype(dtype)))
    states = [tuple(field[i][()] for field in fields) for i in range(1300)]
    expected = zip(*one_by_one(monoid.combine, states), strict=True)
    for field, values in zip(stacked(monoid.combine, fields), expected, strict=True):
        assert field.tobytes() == np.stack(values).tobytes()


@pytest.mark.parametrize(("count", "totals"), [(3 * GROUP + 5, 3), (GROUP * GROUP + 66, 34 + 1)])
def test_a_graph_makes_these_prefixes(count: int, totals: int) -> None:
    x = np.random.default_rng(7).normal(1, 0.3, count)
    scanned = dc.cumprod(da.from_array(x, chunks=1))
    assert sum("-total-" in str(key) for key in scanned.__dask_graph__()) == totals
    bases = one_by_one(PROD.combine, [(value,) for value in x[:-1]])
    # A chunk of one element is its base times that element.
    expected = [x[0], *(base * value for (base,), value in zip(bases, x[1:], strict=True))]
    assert scanned.compute(scheduler="sync").tobytes() == np.array(expected).tobytes()

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
from dask_coop.graph.prefixes import GROUP, sequential, stacked, two_levels

COUNTS = (0, 1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 1100)


def written(a: State, b: State) -> State:
    """Combine texts to a text that tells in which order they were combined."""
    return ("(" + a[0] + b[0] + ")",)


def texts(count: int) -> list[str]:
    return [f"<{i}>" for i in range(count)]


def one_by_one(combine: Any, states: Sequence[State]) -> list[State]:
    """Return the prefixes that `two_levels` makes of states on the host."""
    made = two_levels(
        states,
        lambda g, group: reduce(combine, group),
        lambda totals: sequential(combine, totals),
        lambda g, group, above: sequential(combine, group, above[g - 1] if above else None),
    )
    return [prefix for group in made for prefix in group]


@pytest.mark.parametrize("count", COUNTS)
def test_prefixes_hold_all_states_before_in_their_order(count: int) -> None:
    found = one_by_one(written, [(text,) for text in texts(count)])
    plain = [text.replace("(", "").replace(")", "") for (text,) in found]
    assert plain == ["".join(texts(i + 1)) for i in range(count)]


def test_no_prefix_is_combined_of_more_than_two_levels() -> None:
    depth = GROUP + 1100 // GROUP + GROUP
    deepest = max(
        len(text) - len(text.lstrip("("))
        for (text,) in one_by_one(written, [(t,) for t in "x" * 1100])
    )
    assert GROUP < deepest <= depth


@pytest.mark.parametrize("count", COUNTS[1:])
def test_stacks_are_combined_in_the_order_of_single_states(count: int) -> None:
    (found,) = stacked(written, (np.array(texts(count), object),))
    assert found.tolist() == [text for (text,) in one_by_one(written, [(t,) for t in texts(count)])]


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
    rng, size = np.random.default_rng(len(monoid.name)), (900, *shape)
    turns = np.exp(1j * rng.uniform(0, 7, size)) if dtype == "c16" else 1
    drawn = {"b": rng.random(size) < 0.01, dtype[0]: rng.normal(1, 0.3, size) * turns}
    fields = tuple(drawn[of.kind].astype(of) for of in monoid.dtypes(np.dtype(dtype)))
    states = [tuple(field[i][()] for field in fields) for i in range(900)]
    expected = zip(*one_by_one(monoid.combine, states), strict=True)
    for field, values in zip(stacked(monoid.combine, fields), expected, strict=True):
        assert field.tobytes() == np.stack(values).tobytes()


def test_a_graph_makes_these_prefixes() -> None:
    count = 3 * GROUP + 5
    x = np.random.default_rng(7).normal(1, 0.3, count)
    scanned = dc.cumprod(da.from_array(x, chunks=1))
    assert sum("-total-" in str(key) for key in scanned.__dask_graph__()) == 3
    bases = one_by_one(PROD.combine, [(value,) for value in x[:-1]])
    # A chunk of one element is its base times that element.
    expected = [x[0], *(base * value for (base,), value in zip(bases, x[1:], strict=True))]
    assert scanned.compute(scheduler="sync").tobytes() == np.array(expected).tobytes()

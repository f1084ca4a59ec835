"""Reductions and scans of states without a ufunc, against one combination after the other."""

from __future__ import annotations

from functools import reduce
from itertools import accumulate as one_by_one
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_coop.chunks import asarray, states


def compose(f: Any, g: Any) -> Any:
    """Return g after f, of maps x -> a x + b over integers, which wrap."""
    with np.errstate(over="ignore"):
        return f[0] * g[0], g[0] * f[1] + g[1]


cases = st.tuples(st.lists(st.integers(0, 6), max_size=2), st.integers(1, 40), st.integers(0, 2))


@given(case=cases, seed=st.integers(0, 9), block=st.sampled_from([1, 5, 1 << 16]))
def test_states_are_combined_in_their_order(xp: Any, case: Any, seed: int, block: int) -> None:
    sides, n, at = case
    axis = min(at, len(sides))
    shape = (*sides[:axis], n, *sides[axis:])
    rng = np.random.default_rng(seed)
    host = tuple(rng.integers(-9, 9, shape) for _ in range(2))
    lines = [tuple(field.take(i, axis) for field in host) for i in range(n)]
    base = tuple(rng.integers(-9, 9, (*sides[:axis], *sides[axis:])) for _ in range(2))
    state = tuple(xp.asarray(field) for field in host)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "BLOCK", block)
        reduced = states.reduce_along(compose, state, axis)
        scanned = states.accumulate(compose, state, axis)
        started = states.accumulate(compose, state, axis, tuple(map(xp.asarray, base)))
    for found, expected in [
        (reduced, reduce(compose, lines)),
        (scanned, map(np.array, zip(*one_by_one(lines, compose), strict=True))),
        (started, map(np.array, zip(*one_by_one([base, *lines], compose), strict=True))),
    ]:
        for field, values in zip(found, expected, strict=True):
            if values.ndim > len(sides):
                values = np.moveaxis(values[-n:], 0, axis)
            np.testing.assert_array_equal(asarray(field, "numpy"), values)


def test_nothing_is_scanned_to_nothing(xp: Any) -> None:
    for shape, axis in [((0,), 0), ((3, 0), 1), ((0, 3), 1)]:
        (found,) = states.accumulate(lambda a, b: (a[0] + b[0],), (xp.zeros(shape),), axis)
        assert found.shape == shape


def test_states_are_left_as_they_are(xp: Any) -> None:
    state = (xp.arange(1, 40), xp.arange(39))
    before = [asarray(field, "numpy").copy() for field in state]
    states.accumulate(compose, state, 0, (state[0][3], state[1][5]))
    states.reduce_along(compose, state, 0)
    for field, values in zip(state, before, strict=True):
        np.testing.assert_array_equal(asarray(field, "numpy"), values)

"""The laws of a user's monoid, tried on a few elements before it is used.

Chunks are cut anywhere and combined in groups, so `combine` must be associative, its identity
neutral, and a monoid declared commutative must commute. The laws are tried on the states of a few
small numbers, in all pairs and triples.

The check must never refuse a correct monoid, so it is lenient. Floats may differ by rounding.
States may differ if all results agree: combined with any sample from either side, both give the
same result. So a monoid may represent one value in several ways, as ``gcd`` does: -6 and 6 are the
same to it. If the user's functions fail, or states are not finite, the check passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.api.monoids.fields import Fields

#: The message for a broken law, both sides in words, their states, the indices of the samples in
#: them, and whether states that are not finite may differ.
Law = tuple[str, tuple[str, str], tuple[State, State], Any, bool]

#: No four of the floats add up to 0, where angles and the like jump; few of their products are
#: rounded. Imaginary parts are not negative, because they may hold lengths or weights.
_SAMPLES = {
    "b": (0, 1),
    "u": (0, 1, 2, 3, 5, 6),
    "i": (0, 1, 2, 5, -1, -2, -6),
    "f": (0, 1, 3.25, 0.3125, 6.5625, -1.75, -0.59375),
    "c": (0, 1, 0.3125 + 1j, -1.75 + 0.59375j, 3.25 + 2j, -0.59375 + 6.5625j),
}


class Tried(Protocol):
    """The parts of a `dask_coop.Monoid` that the laws use."""

    name: str
    commutative: bool
    converts: bool
    layout: Fields

    def lift(self, elements: Any, /) -> State:
        """Return the states of elements."""

    def combine(self, a: State, b: State) -> State:
        """Combine states, `a` before `b`."""

    def finalize(self, states: State, /) -> Any:
        """Return the results of states."""

    def identity(self, element: np.dtype[Any]) -> State:
        """Return the neutral state."""


@lru_cache(256)
def check(monoid: Tried, element: np.dtype[Any]) -> None:
    """Raise ValueError if `monoid` breaks a law over elements of a dtype."""
    try:
        with np.errstate(all="ignore"):
            words = _find_flaw(monoid, np.array(_SAMPLES[element.kind]).astype(element))
    # The functions may be meant for other elements.
    except Exception:
        return
    if words:
        raise ValueError(
            f"monoid {monoid.name!r} {words}; check=False takes it for elements with which that "
            "does not happen"
        )


def _find_flaw(monoid: Tried, elements: Any) -> str:
    """Return a message about a broken law, with an example; "" if none is broken."""
    # Two at a time, because lifts may be slow.
    pairs = [monoid.lift(elements[i : i + 2]) for i in range(0, len(elements), 2)]
    samples = tuple(map(np.concatenate, zip(*pairs, strict=True)))
    finite = np.all([np.isfinite(field) for field in samples], axis=0)
    elements, samples = elements[finite], _take(samples, finite)

    def tell(states: State, index: int) -> str:
        return monoid.layout.display(tuple(field[index] for field in states))

    for flaw, (left, right), sides, indices, poles in _laws(monoid, samples):
        position = _first_unlike(monoid, samples, *sides, poles)
        if position is None:
            continue
        operands = []
        for letter, indexes in zip("abc", indices, strict=False):
            lifted = "" if monoid.converts else f" (of {elements[indexes[position]].item()!r})"
            operands.append(f"{letter} = {tell(samples, indexes[position])}{lifted}")
        return (
            f"{flaw}: with {', '.join(operands)}, {left} is {tell(sides[0], position)}, "
            f"and {right} is {tell(sides[1], position)}"
        )
    return ""


def _laws(monoid: Tried, samples: State) -> Iterator[Law]:
    combine, n = monoid.combine, len(samples[0])
    indices = np.indices((n, n, n)).reshape(3, -1)
    a, b, c = (_take(samples, index) for index in indices)
    words = "combine(combine(a, b), c)", "combine(a, combine(b, c))"
    sides = combine(combine(a, b), c), combine(a, combine(b, c))
    yield "is not associative", words, sides, indices, True

    neutral = monoid.identity(np.dtype("f8"))
    flaw = f"has the identity {monoid.layout.display(neutral)}, which is not neutral"
    identity, indices = tuple(np.full(n, number) for number in neutral), np.arange(n)[None]
    yield flaw, ("combine(identity, a)", "a"), (combine(identity, samples), samples), indices, False
    yield flaw, ("combine(a, identity)", "a"), (combine(samples, identity), samples), indices, False

    if monoid.commutative:
        indices = np.indices((n, n)).reshape(2, -1)
        a, b = (_take(samples, index) for index in indices)
        words = "combine(a, b)", "combine(b, a)"
        yield "does not commute", words, (combine(a, b), combine(b, a)), indices, True


def _take(states: State, index: Any) -> State:
    return tuple(field[index] for field in states)


def _first_unlike(
    monoid: Tried, samples: State, left: State, right: State, poles: bool
) -> int | None:
    """Return the first index at which the states lead to different results, or None.

    With `poles`, states that are not finite may differ.
    """
    for position in np.flatnonzero(_differ(left, right, poles)):
        pair = [_take(states, np.full(len(samples[0]), position)) for states in (left, right)]
        for merged in (
            [monoid.combine(samples, state) for state in pair],
            [monoid.combine(state, samples) for state in pair],
        ):
            results = map(monoid.finalize, merged)
            first, second = (r if isinstance(r, tuple) else (r,) for r in results)
            if np.any(_differ(first, second, poles)):
                return int(position)
    return None


def _differ(left: State, right: State, poles: bool) -> Any:
    """Return where numbers differ by more than rounding."""
    differ, finite = np.zeros(len(left[0]), "?"), np.ones(len(left[0]), "?")
    for a, b in zip(left, right, strict=True):
        if a.dtype.kind not in "fc":
            differ |= a != b
            continue
        known = np.isfinite(a) & np.isfinite(b)
        scale = np.max(np.abs([a[known], b[known]]), initial=0)
        slack = float(np.finfo(a.dtype).eps) ** (1 / 3) * scale
        same = (a == b) | ((a != a) & (b != b)) | (known & (np.abs(a - b) <= slack))
        differ |= ~same
        finite &= known
    return differ & finite if poles else differ

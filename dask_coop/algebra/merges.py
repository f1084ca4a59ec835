"""Combine states whose fields depend on one another; also the identities of extrema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

State = tuple[Any, ...]

#: The loader of a module, by the name of a library whose own functions are not exact: CuPy's
#: flush subnormal float32 to zero. The module has `extremum`, `arithmetic` and `cast`, as here, and
#: `comparable`, which returns two arrays that compare exactly as its arguments should.
EXACT: dict[str, Callable[[], Any]] = {}


def extremum(ufunc: np.ufunc, a: Any, b: Any) -> Any:
    """Return the elementwise extrema of two arrays by a ufunc, exactly."""
    exact = _exact(a, b)
    return ufunc(a, b) if exact is None else exact.extremum(ufunc, a, b)


def arithmetic(ufunc: np.ufunc, a: Any, b: Any) -> Any:
    """Return the sum, difference or product of two arrays, correctly rounded."""
    exact = _exact(a, b)
    return ufunc(a, b) if exact is None else exact.arithmetic(ufunc, a, b)


def equals(a: Any, b: Any) -> Any:
    """Return where two arrays are equal, exactly."""
    exact = _exact(a, b)
    if exact is None:
        return a == b
    first, second = exact.comparable(a, b)
    # `comparable` turns NaN into numbers.
    return (first == second) & (a == a)


def cast(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array or scalar as one of `dtype`, correctly rounded."""
    exact = _exact(x, x)
    return x.astype(dtype, copy=False) if exact is None else exact.cast(x, dtype)


def _exact(a: Any, b: Any) -> Any:
    """Return the exact module for two arrays, at least one of the library; None for NumPy."""
    of = type(b if isinstance(a, np.ndarray | np.generic) else a)
    load = EXACT.get(of.__module__.partition(".")[0])
    return None if load is None else load()


def merge_variances(a: State, b: State) -> State:
    """Combine count, mean and squared deviations as Chan, Golub and LeVeque (1983) do."""
    a_count, a_mean, a_m2 = a
    b_count, b_mean, b_m2 = b
    count = a_count + b_count
    # The mean of no element is stored as 0, with weight 0.
    some = np.maximum(count, 1)
    delta = b_mean - a_mean
    scaled = delta * (a_count * (b_count / some))
    return (
        count,
        a_mean * (a_count / some) + b_mean * (b_count / some),
        # This order keeps delta**2 from overflowing where one side is empty.
        a_m2 + b_m2 + dot(delta, scaled),
    )


def merge_deviations(a: State, b: State) -> State:
    """Combine as `merge_variances` does, with a fourth field: the rounding error of each mean.

    A mean far from zero has rounding errors as large as small deviations.
    """
    a_count, a_mean, a_m2, a_short = a
    b_count, b_mean, b_m2, b_short = b
    count = a_count + b_count
    fraction = b_count / np.maximum(count, 1)
    # States may be large, so few arrays are made of them.
    step = b_mean - a_mean
    step += b_short - a_short
    m2 = dot(step, step * (a_count * fraction))
    m2 += a_m2
    m2 += b_m2
    step *= fraction
    step += a_short
    mean = a_mean + step
    # The step keeps the rounding error of the mean. If the step is longer than the mean, some of it
    # is lost, which is small beside the step.
    step -= mean - a_mean
    none, no_more = a_count == 0, b_count == 0
    if np.ndim(none | no_more) or none or no_more:
        # A mean of no element is 0, and the step from it or to it may round.
        mean = choose(none, b_mean, choose(no_more, a_mean, mean))
        step = choose(none, b_short, choose(no_more, a_short, step))
    return count, mean, m2, step


def meet(before: Any, after: Any, a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    """Return the mean of two sides, its rounding error, and the distance between their means.

    Parameters
    ----------
    before, after : number or array
        The weights of the sides.
    a, b : tuple
        The mean of each side, and its rounding error.
    """
    (a_mean, a_short), (b_mean, b_short) = a, b
    total = before + after
    total = choose(total == 0, 1, total)
    by = (b_mean - a_mean) + (b_short - a_short)
    # The mean moves from that of the heavier side: a far mean of little weight has none of its
    # digits.
    back = after > before
    start = choose(back, b_mean, a_mean)
    step = choose(back, b_short - by * (before / total), a_short + by * (after / total))
    mean = start + step
    short = -excess(start, step, mean)
    # With nothing before it, the second side keeps all its digits.
    alone = back & (before == 0)
    return choose(alone, b_mean, mean), choose(alone, b_short, short), by


def dot(a: Any, b: Any) -> Any:
    """Return products, and for complex numbers the sum of real and imaginary products."""
    return a.real * b.real + a.imag * b.imag if a.dtype.kind == "c" else a * b


def corrected(products: Any, by: Any) -> Any:
    """Return sums of products about means, from those about points near the means.

    A correction is smaller than the sums, so where it overflows, these have.
    """
    return products - choose(np.isfinite(by), by, 0.0)


def merge_moments(a: State, b: State) -> State:
    """Combine states of `MOMENTS`, which `describe` uses."""
    a_count, a_nans, a_low, a_high, a_total, a_mean, a_m2 = a
    b_count, b_nans, b_low, b_high, b_total, b_mean, b_m2 = b
    count, mean, m2 = merge_variances((a_count, a_mean, a_m2), (b_count, b_mean, b_m2))
    return (
        count,
        a_nans + b_nans,
        extremum(np.minimum, a_low, b_low),
        extremum(np.maximum, a_high, b_high),
        a_total + b_total,
        mean,
        m2,
    )


def excess(a: Any, b: Any, total: Any) -> Any:
    """Return by how much the rounded `total` of `a` and `b` exceeds their exact sum.

    The difference is a float64, too: D. E. Knuth, "The Art of Computer Programming", volume 2,
    theorem 4.2.2 B.
    """
    added = total - a
    return (added - b) + ((total - added) - a)


def merge_sums(a: State, b: State) -> State:
    """Add totals, their excesses over the exact sums, and counts.

    The excess of a total that is not finite is NaN.
    """
    (a_total, a_excess, *a_counts), (b_total, b_excess, *b_counts) = a, b
    total = a_total + b_total
    counts = (x + y for x, y in zip(a_counts, b_counts, strict=True))
    return (total, a_excess + b_excess + excess(a_total, b_total, total), *counts)


def settle(state: State) -> State:
    """Return a state with its total, rounded once, in the place of total and excess.

    Both are float64, so that together they are good to some 100 bits.
    """
    total, excess, *counts = state
    with np.errstate(all="ignore"):
        exact = total - excess
        if exact.dtype.kind != "c":
            # Infinite or NaN is the total where it is either, and its excess says nothing.
            return (choose(np.isfinite(exact), exact, total), *counts)
        settled = np.empty_like(exact)
        settled.real = choose(np.isfinite(exact.real), exact.real, total.real)
        settled.imag = choose(np.isfinite(exact.imag), exact.imag, total.imag)
        return (settled[()], *counts)


def merge_extrema(before: np.ufunc, a: State, b: State) -> State:
    """Keep the better value, NaN before any other; of equal values, the first."""
    (a_value, a_index), (b_value, b_index) = a, b
    a_nan, b_nan = a_value != a_value, b_value != b_value
    exact = _exact(a_value, b_value)
    a_rank, b_rank = (a_value, b_value) if exact is None else exact.comparable(a_value, b_value)
    equal = (a_rank == b_rank) | (a_nan & b_nan)
    better = (before(b_rank, a_rank) | b_nan) & ~a_nan
    take = better | (equal & (b_index < a_index))
    return choose(take, b_value, a_value), choose(take, b_index, a_index)


def merge_first(a: State, b: State) -> State:
    """Keep the element with the least index; no element has the largest index."""
    (a_value, a_index), (b_value, b_index) = a, b
    take = b_index < a_index
    return choose(take, b_value, a_value), choose(take, b_index, a_index)


def merge_last(nothing: int, a: State, b: State) -> State:
    """Keep the element with the largest index; no element has the index `nothing`."""
    (a_value, a_index), (b_value, b_index) = a, b
    take = (b_index != nothing) & ((a_index == nothing) | (b_index > a_index))
    return choose(take, b_value, a_value), choose(take, b_index, a_index)


def merge_counts(a: State, b: State) -> State:
    """Add two tables; a table of integers may be longer than the other."""
    (long,), (short,) = a, b
    if np.ndim(long) != 1 or np.shape(long) == np.shape(short):
        return (np.add(long, short),)
    if len(long) < len(short):
        long, short = short, long
    table = long.copy()
    table[: len(short)] += short
    return (table,)


#: States of `RUN_PLACES`: of one element, false or true, and of several that end in false, in
#: a true element after a false one, or in two true ones; no element has zero.
ONE_FALSE, ONE_TRUE, FALSE, BEGUN, GOES_ON = 1, 2, 3, 4, 5


def merge_places(a: State, b: State) -> State:
    """Return the last two elements of a mask, as the numbers above."""
    (before,), (after,) = a, b
    is_true = (before == ONE_TRUE) | (before >= BEGUN)
    met = choose(after == ONE_TRUE, choose(is_true, GOES_ON, BEGUN), FALSE).astype("u1")
    is_alone = (after == 0) | (before == 0)
    return (choose(is_alone, before | after, choose(after >= FALSE, after, met)),)


def places(ending: Any) -> Any:
    """Return the place in its run of the last element of states of `RUN_PLACES`."""
    return choose(ending >= BEGUN, ending - (BEGUN - 1), ending == ONE_TRUE).astype("u1")


def merge_lengths(a: State, b: State) -> State:
    """Add up the lengths of two stretches of a run, if it is one."""
    length, joined, is_open = a
    b_length, b_joined, b_open = b
    none = b_joined & (b_length == 0)
    longer = choose(b_joined & is_open, length + b_length, b_length)
    joined = joined & b_joined & (is_open | none)
    return choose(none, length, longer), joined, choose(none, is_open, b_open)


def run_lengths(state: State) -> Any:
    """Return the lengths of runs that states of `RUN_LENGTHS` end with, NaN for open ones."""
    length, _, is_open = state
    return choose(is_open & (length > 0), np.nan, length)


def choose(take: Any, a: Any, b: Any) -> Any:
    """Return elements of `a` where `take` holds, else of `b`; scalars for scalars."""
    chosen: Any = np.where(take, a, b)
    return chosen[()]


def highest(dtype: np.dtype[Any]) -> Any:
    """Return the highest value of `dtype`; complex numbers are in lexicographic order."""
    if dtype.kind == "b":
        return np.True_
    if dtype.kind in "mM":
        return np.int64(np.iinfo("i8").max).view(dtype)
    if dtype.kind == "c":
        return dtype.type(complex(np.inf, np.inf))
    return dtype.type(np.inf if dtype.kind == "f" else np.iinfo(dtype).max)


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return the lowest value of `dtype`, except NaT."""
    if dtype.kind == "b":
        return np.False_
    if dtype.kind in "mM":
        # The lowest integer is NaT.
        return np.int64(np.iinfo("i8").min + 1).view(dtype)
    if dtype.kind == "c":
        return dtype.type(complex(-np.inf, -np.inf))
    return dtype.type(-np.inf if dtype.kind == "f" else np.iinfo(dtype).min)

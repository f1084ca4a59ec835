"""Products of deviations of several variables, on NumPy and CuPy chunks alike.

For covariances of many variables, a chunk has a row for each and a column for each sample. Rows
lose their means, so that nothing cancels, and one product of matrices has all pairs. NumPy chunks
are taken block by block, each small enough to stay in a cache meanwhile.

States of `algebra.paired.Paired`, of two arrays, and of central moments take the backend's own
sums, over any axes or by group, where the backend has no loop or kernel of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dask_coop import chunks
from dask_coop.algebra.central_moments import Powers, centred
from dask_coop.algebra.merges import cast, choose, corrected
from dask_coop.algebra.monoids import MEAN, SUM, State, floating
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.paired import (
    COMOMENTS,
    WEIGHTED_MEAN,
    Paired,
    Products,
    merge_products,
)
from dask_coop.chunks.dtypes import device_of

Array = Any

#: The elements of a block of a NumPy chunk, and its fewest samples for each variable: with fewer,
#: the product is small beside what is done to its result.
_BLOCK, _SAMPLES = 1 << 16, 64

#: The products of matrices into which one is cut on a GPU.
_BATCHES = 512

#: The rows from which on sums of rows are fast in any order of their elements.
_MANY = 16


def products(a: Array, b: Array | None, fweights: Array | None, aweights: Array | None) -> Products:
    """Return the state of the variables in the rows of `a` and of `b`, or of `a` alone.

    Parameters
    ----------
    a, b : array
        Numbers of any dtype; a column for each sample.
    fweights, aweights : array, optional
        How often each sample was seen, and how reliable it is.
    """
    with device_of(a):
        return _products(a, b, fweights, aweights)


def _products(
    a: Array, b: Array | None, fweights: Array | None, aweights: Array | None
) -> Products:
    kind, n = chunks.kind(a), a.shape[1]
    weights = [
        None if w is None else chunks.asarray(w, kind).astype("f8", copy=False)
        for w in (fweights, aweights)
    ]
    rows = max(1, len(a))
    width = max(_SAMPLES * rows, _BLOCK // rows) if kind == "numpy" else n
    states = []
    for start in range(0, max(n, 1), max(width, 1)):
        columns = slice(start, start + width)
        some = [None if w is None else w[columns] for w in weights]
        states.append(_of_block(a[:, columns], None if b is None else b[:, columns], *some))
    return reduce(merge_products, states)


def _of_block(
    a: Array, b: Array | None, fweights: Array | None, aweights: Array | None
) -> Products:
    with np.errstate(all="ignore"):
        weights = fweights if aweights is None else aweights
        if weights is None:
            side = a if b is None else b
            if (products := chunks.backend_of(a).multiply_deviations(a, side)) is not None:
                return _about_means_of(np.float64(a.shape[1]), *products)
        if fweights is not None and aweights is not None:
            weights = fweights * aweights
        total = np.float64(a.shape[1]) if weights is None else weights.sum()
        squares = np.float64(0) if aweights is None else (weights * aweights).sum()
        root = None if weights is None else np.sqrt(weights)
        left = _deviations(a, weights, total, root)
        right = left if b is None else _deviations(b, weights, total, root)
        mean, short, rows = left
        other, other_short, columns = right
        product = _product(rows, columns.conj() if columns.dtype.kind == "c" else columns)
        product = corrected(product, (total * short)[:, np.newaxis] * other_short.conj())
        return Products(total, squares, mean, short, other, other_short, product)


def _about_means_of(
    n: Any, shift: Array, sums: Array, other_shift: Array, other_sums: Array, product: Array
) -> Products:
    """Return the state of products of deviations from shifts instead of means."""
    short, other_short = sums / n, other_sums / n
    product = corrected(product, (n * short)[:, np.newaxis] * other_short)
    # NaN where an element is infinite: it has no deviation from the mean.
    product += (short * 0)[:, np.newaxis] + other_short * 0
    mean, other = shift + short, other_shift + other_short
    rounding, other_rounding = short - (mean - shift), other_short - (other - other_shift)
    return Products(n, np.float64(0), mean, rounding, other, other_rounding, product)


def _deviations(
    x: Array, weights: Array | None, total: Any, root: Array | None
) -> tuple[Array, Array, Array]:
    """Return means of rows, their rounding errors, and weighted deviations from the means."""
    wide = floating(x.dtype)
    if weights is not None or x.dtype.kind != "f" or chunks.kind(x) == "numpy":
        x = _converted(x, wide)
    some = choose(total == 0, 1.0, total)
    mean = (_sums(x, wide) if weights is None else x @ weights) / some
    deviations = (x.T - mean).T if _is_by_column(x) else x - mean[:, np.newaxis]
    short = (_sums(deviations, wide) if weights is None else deviations @ weights) / some
    if root is not None:
        deviations *= root
    return mean, short, deviations


def _converted(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return elements in a dtype, in the memory order of the chunk; few rows in C order."""
    if chunks.kind(x) == "numpy":
        return x.astype(dtype, order="C" if len(x) < _MANY else "K", copy=False)
    # CuPy reads the elements of `x.T` in the order of its result.
    return x.T.astype(dtype, copy=False).T if _is_by_column(x) else x.astype(dtype, copy=False)


def _sums(x: Array, wide: np.dtype[Any]) -> Array:
    """Return the sums of rows, in a dtype."""
    if (kind := chunks.kind(x)) == "numpy":
        return x.sum(1)
    m, n = x.shape
    number = min(_BATCHES, n // _SAMPLES)
    if number > 1 and _is_by_column(x):
        # Sums of a few long columns would keep few multiprocessors busy.
        end = n // number * number
        sums = x.T[:end].reshape(number, -1, m).sum(1, wide).sum(0)
        return sums + x[:, end:].sum(1, wide)
    (sums,) = chunks.backend_of(x).lift(Operation(SUM, x.dtype, wide), x, (1,))
    return _moved(sums, kind)


def _product(rows: Array, columns: Array) -> Array:
    """Return ``rows @ columns.T``."""
    n, most = rows.shape[1], max(len(rows), len(columns))
    number = min(_BATCHES, n // max(1, _SAMPLES * most))
    if chunks.kind(rows) == "numpy" or number < 2 or not (rows.size and columns.size):
        # BLAS computes half of the product of real rows with themselves.
        return rows @ columns.T
    # Else few rows would keep few multiprocessors busy.
    end = n // number * number
    a, b = _batches(rows[:, :end], number), _batches(columns[:, :end], number).swapaxes(1, 2)
    return (_in_order(a) @ _in_order(b)).sum(0) + rows[:, end:] @ columns[:, end:].T


def _batches(x: Array, number: int) -> Array:
    """Return matrices of a number of equal spans of columns."""
    if _is_by_column(x):
        return x.T.reshape(number, -1, len(x)).swapaxes(1, 2)
    return x.reshape(len(x), number, -1).swapaxes(0, 1)


def _in_order(x: Array) -> Array:
    """Return a chunk in C order, which CuPy's products make of it in a slower way."""
    return x if x.flags.c_contiguous else chunks.backend_of(x).transpose(x, range(x.ndim))


def _is_by_column(x: Array) -> bool:
    """Return whether the elements of a column are neighbours in memory."""
    return bool(x.strides[0] < x.strides[1])


def lift(
    backend_lift: Callable[..., State],
    op: Operation,
    x: Array,
    second: Array,
    axes: tuple[int, ...],
) -> State:
    """Return the state of pairs of elements over `axes`, by sums of a chunk backend.

    Parameters
    ----------
    backend_lift : callable
        The backend's `lift`.
    op : Operation
        Of a monoid of `algebra.paired`.
    x : array
        The elements; complex numbers are pairs if the monoid is `COMOMENTS`.
    second : array
        The other variable if the monoid is `COMOMENTS` and `x` is real, else the weights.
    axes : tuple of int
        Sorted and not negative.
    """
    x, second = np.broadcast_arrays(x, second)
    variables, weights = _variables(op, x, second)
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    wide = variables[0].dtype

    def total(values: Array) -> Any:
        (result,) = backend_lift(Operation(SUM, wide, wide), values, axes)
        return result

    def expand(mean: Array) -> Array:
        return mean.reshape(kept)

    with np.errstate(all="ignore"):
        if op.skipna:
            variables, weights = _without_nan(variables, weights)
        # Without weights, one number for all lines.
        n = np.float64(math.prod(x.shape[axis] for axis in axes))
        weight = n if weights is None else total(weights)
        if op.monoid is WEIGHTED_MEAN:
            return total(variables[0] * weights), weight
        return _about_means(variables, weights, weight, total, expand)


def _variables(
    op: Operation, x: Array, second: Array | None
) -> tuple[tuple[Array, ...], Array | None]:
    """Return one variable or two, and their weights if any, as `lift` takes them."""
    wide = floating(op.element)
    if op.monoid is not COMOMENTS:
        return (cast(x, wide),), cast(second, wide)
    real = np.dtype("f8")
    if wide.kind == "c":
        weights = None if second is None else cast(second, real)
        return (cast(x.real, real), cast(x.imag, real)), weights
    return (cast(x, real), cast(second, real)), None


def _without_nan(
    variables: tuple[Array, ...], weights: Array | None
) -> tuple[tuple[Array, ...], Array]:
    """Return variables and weights that are 0 where a variable is NaN."""
    valid = reduce(np.logical_and, (variable == variable for variable in variables))
    weights = valid.astype("f8") if weights is None else np.where(valid, weights, 0)
    return tuple(np.where(valid, variable, 0) for variable in variables), weights


def _about_means(
    variables: tuple[Array, ...],
    weights: Array | None,
    weight: Any,
    total: Callable[[Array], Any],
    expand: Callable[[Array], Array],
) -> State:
    """Return a state of `WEIGHTED_VAR` or `COMOMENTS`; the arguments are as those of `powers`."""

    def weighted(values: Array) -> Any:
        return total(values if weights is None else values * weights)

    some = choose(weight == 0, 1.0, weight)
    fields, deviations = [weight], []
    for variable in variables:
        mean = weighted(variable) / some
        d = variable - expand(_moved(mean, chunks.kind(variable)))
        short = weighted(d) / some
        fields += [mean, short, corrected(weighted(d * d), short * (short * weight))]
        deviations.append(d)
    if len(variables) > 1:
        between = weighted(deviations[0] * deviations[1])
        fields.append(corrected(between, fields[2] * (fields[5] * weight)))
    return tuple(fields)


def powers(
    op: Operation,
    x: Array,
    means: State,
    total: Callable[[Array], Any],
    expand: Callable[[Array], Array],
) -> State:
    """Return a state of `algebra.central_moments`, by sums of a chunk backend.

    Parameters
    ----------
    op : Operation
        Of central moments.
    x : array
        Of float64.
    means : tuple
        The sums and the numbers of elements, without NaN if `op` leaves them out.
    total : callable
        Adds elements of the shape of `x`.
    expand : callable
        Brings means into a shape that broadcasts to that of `x`.
    """
    sums, count = means
    with np.errstate(all="ignore"):
        mean = sums / np.maximum(count, 1)
        deviation = x - expand(_moved(mean, chunks.kind(x)))
        if op.skipna:
            deviation = np.where(np.isnan(x), 0.0, deviation)
        power, of_powers = deviation, [total(deviation)]
        for _ in range(2, len(op.monoid.fields) - 1):
            power = power * deviation
            of_powers.append(total(power))
        # States differ in size; if one has stayed on a GPU, all go there.
        fields = [count, mean, *of_powers]
        if not all(isinstance(field, np.ndarray | np.generic) for field in fields):
            count, mean, *of_powers = (_moved(field, chunks.kind(x)) for field in fields)
        return centred(count, mean, of_powers)


def _moved(value: Any, kind: str) -> Array:
    """Return a number or array as an array of a kind."""
    return chunks.asarray(np.asarray(value) if isinstance(value, np.generic) else value, kind)


#: The monoids whose states of groups are made of sums of groups.
BY_SUMS = (Powers, Paired)


def each_of_groups(
    lift_groups: Callable[..., list[State]],
    ops: Sequence[Operation],
    x: Array,
    codes: Array,
    n: int,
    by_loop: Callable[..., State | None] = lambda *_: None,
) -> list[State]:
    """Return states of groups, of which some are made of sums, as `lift_groups` does.

    `by_loop` returns such a state, too, or None.
    """
    others = [op for op in ops if not isinstance(op.monoid, BY_SUMS)]
    states = iter(lift_groups(others, x, codes, n) if others else [])
    lifted = []
    for op in ops:
        if not isinstance(op.monoid, BY_SUMS):
            lifted.append(next(states))
        elif (state := by_loop(op, x, codes, n)) is not None:
            lifted.append(state)
        else:
            lifted.append(_by_sums(lift_groups, op, x, codes, n))
    return lifted


def _by_sums(
    lift_groups: Callable[..., list[State]], op: Operation, x: Array, codes: Array, n: int
) -> State:
    real = np.dtype("f8")

    def total(values: Array) -> Any:
        return lift_groups([Operation(SUM, real, real)], values, codes, n)[0][0]

    def expand(mean: Array) -> Array:
        # Elements without a group get any mean, and take no part.
        return mean[..., codes.clip(0)] if n else np.zeros_like(x, real)

    if isinstance(op.monoid, Powers):
        x = cast(x, real)
        (means,) = lift_groups([Operation(MEAN, real, real, op.skipna)], x, codes, n)
        return powers(op, x, means, total, expand)
    with np.errstate(all="ignore"):
        variables, weights = _variables(op, x, None)
        if op.skipna:
            variables, weights = _without_nan(variables, weights)
        weight = total(np.ones_like(variables[0]) if weights is None else weights)
        return _about_means(variables, weights, weight, total, expand)

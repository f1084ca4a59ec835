"""States of several variables at a time: weights, means, and sums of products of deviations.

The mean of each variable carries its rounding error, as large as small deviations where a mean is
far from zero. With d the distance between two means, and W the weights::

    W = W1 + W2      mean = mean1 + d W2 / W      product = product1 + product2 + d d' W1 W2 / W

The formulas are those of T. F. Chan, G. H. Golub and R. J. LeVeque (1983), with weights as in
D. H. D. West, "Updating Mean and Variance Estimates: An Improved Method" (1979).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_coop.algebra.merges import choose, excess

Array = Any


class Products(NamedTuple):
    """The state of samples of two groups of variables.

    Attributes
    ----------
    weight, squares : numbers
        The sum of the weights, and that of their products with the reliability weights.
    mean, short, other, other_short : arrays
        The means of the variables of either group, and the rounding errors of these.
    product : array
        The sums of products of deviations: a row for each variable of the first group, a column
        for each of the second, which are conjugated.
    """

    weight: Any
    squares: Any
    mean: Array
    short: Array
    other: Array
    other_short: Array
    product: Array


def merge_products(a: Products, b: Products) -> Products:
    """Combine states of the same variables."""
    with np.errstate(all="ignore"):
        weight = a.weight + b.weight
        fraction = b.weight / choose(weight == 0, 1.0, weight)
        mean, short, by = meet(fraction, (a.mean, a.short), (b.mean, b.short))
        other, other_short, along = meet(
            fraction, (a.other, a.other_short), (b.other, b.other_short)
        )
        between = (by * (a.weight * fraction))[:, np.newaxis] * along.conj()
        product = a.product + b.product + between
        return Products(weight, a.squares + b.squares, mean, short, other, other_short, product)


def meet(fraction: Any, a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    """Return the mean of two sides, its rounding error, and the distance between their means.

    Parameters
    ----------
    fraction : number or array
        The second side's fraction of all weights.
    a, b : tuple
        The mean of each side, and its rounding error.
    """
    (a_mean, a_short), (b_mean, b_short) = a, b
    by = (b_mean - a_mean) + (b_short - a_short)
    step = a_short + by * fraction
    mean = a_mean + step
    return mean, -excess(a_mean, step, mean), by

"""States of several variables at a time: weights, means, and sums of products of deviations.

The mean of each variable carries its rounding error, as large as small deviations where a mean is
far from zero. With d the distance between two means, and W the weights::

    W = W1 + W2      mean = mean1 + d W2 / W      product = product1 + product2 + d d' W1 W2 / W

The formulas are those of T. F. Chan, G. H. Golub and R. J. LeVeque (1983), with weights as in
D. H. D. West, "Updating Mean and Variance Estimates: An Improved Method" (1979).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dask_coop.algebra.merges import choose, meet
from dask_coop.algebra.monoids import Field, MonoidRow, State, mean_dtype, zero

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
        weights = a.weight, b.weight
        mean, short, by = meet(*weights, (a.mean, a.short), (b.mean, b.short))
        other, other_short, along = meet(
            *weights, (a.other, a.other_short), (b.other, b.other_short)
        )
        between = (by * (a.weight * fraction))[:, np.newaxis] * along.conj()
        product = a.product + b.product + between
        return Products(weight, a.squares + b.squares, mean, short, other, other_short, product)


@dataclass(frozen=True, eq=False)
class Paired(MonoidRow):
    """A monoid of pairs of elements, whose second comes in the place of the mask.

    The functor is that of `of_complex`.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that finds it, so that tasks stay small and `is` holds."""
        return paired_row, (self.name,)

    def __dask_tokenize__(self) -> Any:
        """Return the name, for Dask's keys."""
        return "Paired", self.name


def paired_row(name: str) -> Paired:
    """Return the row of a name."""
    return _ROWS[name]


def _merge_moments(a: State, b: State) -> State:
    """Combine weights and, for one variable or two, means and products of deviations.

    The fields are those of `WEIGHTED_VAR` or `COMOMENTS`.
    """
    weight = a[0] + b[0]
    fraction = b[0] / choose(weight == 0, 1.0, weight)
    scale = a[0] * fraction
    merged, distances = [weight], []
    for at in range(1, 3 * (len(a) // 3), 3):
        mean, short, by = meet(a[0], b[0], a[at : at + 2], b[at : at + 2])
        merged += [mean, short, a[at + 2] + b[at + 2] + by * (by * scale)]
        distances.append(by)
    if len(distances) > 1:
        merged.append(a[-1] + b[-1] + distances[0] * (distances[1] * scale))
    return tuple(merged)


def _variable(name: str) -> tuple[Field, ...]:
    """Return the fields of a variable: mean, its rounding error, and squared deviations."""
    return tuple(Field(f"{name}_{of}", "real", zero, np.add) for of in ("mean", "short", "squares"))


_WEIGHT = Field("weight", "real", zero, np.add)
#: Sums of weighted elements and of weights.
WEIGHTED_MEAN = Paired(
    "weighted_mean",
    (Field("total", "float", zero, np.add), Field("weight", "float", zero, np.add)),
    "biufc",
    "MeanOfPairs",
)
WEIGHTED_VAR = Paired(
    "weighted_var",
    (_WEIGHT, *_variable("x")),
    "biuf",
    "VarOfPairs",
    _merge_moments,
    output=mean_dtype,
)
#: Counts, means, squares and products of two variables.
COMOMENTS = Paired(
    "comoments",
    (_WEIGHT, *_variable("x"), *_variable("y"), Field("products", "real", zero, np.add)),
    "biuf",
    "CoMoments",
    _merge_moments,
    output=mean_dtype,
)
_ROWS = {row.name: row for row in (WEIGHTED_MEAN, WEIGHTED_VAR, COMOMENTS)}


@cache
def of_complex(row: Paired) -> MonoidRow:
    """Return the row whose pairs of real numbers lie in complex ones."""
    fields = tuple(replace(field, role="real") for field in row.fields)
    options: Any = ("skipna",) if row is COMOMENTS else ()
    return MonoidRow(f"{row.name}_of_complex", fields, "c", row.functor, row.merge, options=options)

"""The statistics of groups by their names: which operations they are made of, and how.

Several statistics share what they have in common: the operations of all of them are lifted in one
read, and each picks its states::

    mean  -->  MEAN  -+
    var   -->  VAR   -+-->  a table for each operation  -->  mean, var, std
    std   -->  VAR   -+

Results keep flox's rules: what a group without elements gets, and the dtype that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dask_coop import chunks
from dask_coop.algebra import fills
from dask_coop.algebra.merges import lowest, settle
from dask_coop.algebra.monoids import COUNT, NO_INDEX, State
from dask_coop.algebra.operation import Operation, bind, compensated
from dask_coop.algebra.statistics import STATISTICS, Finish, only_field

#: For the result of a group without elements where it is that of the monoid's identity.
IDENTITY = "identity"


@dataclass(frozen=True)
class Fill:
    """What groups get that have too few elements.

    Attributes
    ----------
    value : object
        What was asked for; None where nothing was.
    least : int
        How many elements a group has to have, NaN not counted, for a result of its own.
    nothing : object
        What a group without elements gets where nothing was asked for, or `IDENTITY`.
    """

    value: Any
    least: int
    nothing: Any


@dataclass(frozen=True)
class Statistic:
    """A statistic of elements of a dtype.

    Attributes
    ----------
    name : str
    ops : tuple of Operation
        What it is made of; then, if elements have to be counted, what counts those that are not NaN
        and what counts all.
    finish : callable
        Makes results of the states of the first.
    dtype : dtype
        That of the results.
    fill : Fill
    """

    name: str
    ops: tuple[Operation, ...]
    finish: Finish
    dtype: np.dtype[Any]
    fill: Fill


@dataclass(frozen=True)
class Asked:
    """What is asked for besides a statistic's name, as the public function got it.

    Attributes
    ----------
    dtype : dtype or None
        That of the results, where it is not the statistic's own.
    fill_value : object
        What groups get that have too few elements, or None.
    least : int
        How many a group has to have, NaN not counted.
    counted : bool
        Whether all elements have to be counted to know which groups have some.
    """

    dtype: Any = None
    fill_value: Any = None
    least: int = 0
    counted: bool = False


def missing(dtype: np.dtype[Any]) -> Any:
    """Return what stands for a result that is missing: NaN, NaT, and of integers the lowest."""
    return fills.missing(dtype) if dtype.kind in "fcmM" else lowest(dtype)


def find(func: str, element: np.dtype[Any], asked: Asked, kwargs: Mapping[str, Any]) -> Statistic:
    """Return a statistic of elements of a dtype, by its name.

    Raises
    ------
    TypeError, ValueError
        If there is none of that name, or not of such elements.
    """
    if func not in STATISTICS:
        raise ValueError(
            f"groupby_reduce does not know func={func!r}; it takes {', '.join(STATISTICS)}, "
            "median, nanmedian, quantile, nanquantile, a Monoid, or a list of these"
        )
    row = STATISTICS[func]
    if unknown := kwargs.keys() - set(row.keywords):
        raise TypeError(f"{func} takes no {min(unknown)!r} in finalize_kwargs")
    finish = row.finish_with(**{key: float(value) for key, value in kwargs.items()})
    monoid, skipna = row.monoid_of(element), row.leaves_out(element)
    if monoid.positional and row.finish is only_field:
        finish = partial(_where_any, missing(element))
    output = own = monoid.output(element)
    result = own if asked.dtype is None else np.dtype(asked.dtype).newbyteorder("=")
    if row.converts and not (skipna and result.kind in "biu"):
        # NaN that are left out are no integers before.
        output = result
    op = bind(monoid, element, output, f"groupby_reduce by {func}", skipna)
    fill_value, least = asked.fill_value, asked.least
    if row.without_nan is not None and row.skipna and not least:
        # As flox has it, a group of nothing but NaN is one without elements.
        least, fill_value = 1, missing(result) if fill_value is None else fill_value
    elif fill_value is None and least > 0 and func in ("nansum", "nanprod"):
        fill_value = np.nan
    asked = replace(asked, fill_value=fill_value, least=least)
    return make(func, op, finish, result, asked, row.nothing)


def make(
    name: str,
    op: Operation,
    finish: Finish,
    result: np.dtype[Any],
    asked: Asked,
    nothing: Any = None,
) -> Statistic:
    """Return a statistic that is made of an operation, and of what counts elements for it."""
    dtype = result
    if asked.fill_value is not None:
        dtype = filled_dtype(result, asked.fill_value)
    ops = [op]
    counts = Operation(COUNT, op.element, np.dtype("i8"))
    if asked.least > 0:
        ops.append(replace(counts, skipna=op.element.kind in "fc"))
    if asked.counted:
        ops.append(counts)
    nothing = missing(result) if nothing is None else nothing
    fill = Fill(asked.fill_value, asked.least, nothing)
    return Statistic(name, tuple(ops), finish, dtype, fill)


def exactly(statistic: Statistic) -> Statistic:
    """Return a statistic whose sums of floats keep what additions in float64 round off."""
    op, *rest = statistic.ops
    exact = compensated(op) if op.element.kind == "f" else op
    if exact is op:
        return statistic
    finish = partial(_settled, statistic.finish)
    return replace(statistic, ops=(exact, *rest), finish=finish)


def filled_dtype(result: np.dtype[Any], fill_value: Any) -> np.dtype[Any]:
    """Return the dtype of results of one dtype with a fill value among them."""
    dtype = np.result_type(result, fill_value)
    try:
        np.array(fill_value, dtype)
    except OverflowError as error:
        raise ValueError(
            f"fill_value={fill_value!r} is no {dtype}, which the results are; ask for another dtype"
        ) from error
    return dtype


# Inside the task.


def finalize(statistic: Statistic, at: tuple[int, ...], states: list[State], absent: Any) -> Any:
    """Return a statistic of groups, of whose operations the states are `at` some places.

    `absent` are the groups that are known to have no element, or None.
    """
    fill, (own, *counts) = statistic.fill, [states[i] for i in at]
    value = statistic.finish(own)
    if len(counts) > (fill.least > 0):
        empty = counts[-1][0] == 0
        absent = empty if empty.any() else None
    if absent is not None and not (fill.value is None and fill.nothing is IDENTITY):
        instead = fill.nothing if fill.value is None else fill.value
        value = np.where(as_kind(absent, value), np.asarray(instead, statistic.dtype)[()], value)
    if fill.least > 0:
        few = counts[0][0] < fill.least
        if few.any():
            value = np.where(as_kind(few, value), required(statistic.name, fill), value)
    return value


def required(name: str, fill: Fill) -> Any:
    """Return the fill value that is asked for, in the words of flox where there is none."""
    if fill.value is None:
        raise ValueError(
            f"Filling is required but fill_value is None: a group has less than min_count="
            f"{fill.least} elements that {name} takes; give fill_value"
        )
    return fill.value


def as_kind(mask: Any, value: Any) -> Any:
    """Return a mask of groups where `value` is: tables of few bytes are on the host."""
    return chunks.asarray(mask, chunks.kind(value))


def _settled(finish: Finish, state: State) -> Any:
    return finish(settle(state))


def _where_any(nothing: Any, state: State) -> Any:
    value, index = state
    return np.where(index == NO_INDEX, nothing, value)

"""Statistics of groups by name: their operations, and how results follow from the states.

Several statistics share one read and their common operations; each picks its states::

    mean  -->  MEAN  -+
    var   -->  VAR   -+-->  a table for each operation  -->  mean, var, std
    std   -->  VAR   -+

Fill values of groups without elements, and the dtypes of results, follow flox's rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dask_coop import chunks
from dask_coop.algebra import fills
from dask_coop.algebra.merges import lowest, settle
from dask_coop.algebra.monoids import COUNT, NO_INDEX, State
from dask_coop.algebra.operation import Operation, bind, compensated
from dask_coop.algebra.statistics import STATISTICS, Fill, Finish, only_field

#: Marks that the result of a group without elements is that of the monoid's identity.
IDENTITY = "identity"


@dataclass(frozen=True)
class Statistic:
    """A statistic of elements of a dtype.

    Attributes
    ----------
    name : str
    ops : tuple of Operation
        The operation of the statistic itself; then, if needed, one that counts the elements other
        than NaN, and one that counts all elements.
    finish : callable
        Turns the states of the first operation into results.
    dtype : dtype
        The dtype of the results.
    fill : Fill
    """

    name: str
    ops: tuple[Operation, ...]
    finish: Finish
    dtype: np.dtype[Any]
    fill: Fill


@dataclass(frozen=True)
class Asked:
    """The options of a statistic that the caller of the public function gave.

    Attributes
    ----------
    dtype : dtype or None
        The dtype of the results; None for the statistic's own.
    fill_value : object
        The result of groups with too few elements, or None.
    least : int
        The number of elements, not counting NaN, that a group needs.
    counted : bool
        Whether elements must be counted to find the groups without any.
    """

    dtype: Any = None
    fill_value: Any = None
    least: int = 0
    counted: bool = False


def missing(dtype: np.dtype[Any]) -> Any:
    """Return the value of a missing result: NaN, NaT or the lowest integer."""
    return fills.missing(dtype) if dtype.kind in "fcmM" else lowest(dtype)


def refuse_others(func: str, kwargs: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise TypeError for words in `finalize_kwargs` that a statistic does not take."""
    if unknown := kwargs.keys() - set(known):
        taken = ", ".join(sorted(known)) or "none"
        raise TypeError(
            f"{func} takes no {min(unknown, key=str)!r} in finalize_kwargs; it takes {taken}"
        )


def as_number(func: str, word: str, value: Any) -> float:
    """Return a value of `finalize_kwargs` as a float; raise TypeError unless it is a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{func} takes a number or bool for {word!r} in finalize_kwargs, got {value!r}"
        ) from None


def find(func: str, element: np.dtype[Any], asked: Asked, kwargs: Mapping[str, Any]) -> Statistic:
    """Return the statistic `func` of elements of a dtype.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or the statistic does not take such elements.
    """
    if func not in STATISTICS:
        raise ValueError(
            f"groupby_reduce does not know func={func!r}; it takes {', '.join(STATISTICS)}, "
            "median, nanmedian, quantile, nanquantile, mode, nanmode, nunique, a Monoid, or a list "
            "of these; with y=, cov, corr, slope and other statistics of pairs"
        )
    row = STATISTICS[func]
    refuse_others(func, kwargs, row.keywords)
    finish = row.finish_with(**{key: as_number(func, key, kwargs[key]) for key in kwargs})
    monoid, skipna = row.monoid_of(element), row.leaves_out(element)
    output = default = monoid.output(element)
    result = default if asked.dtype is None else np.dtype(asked.dtype).newbyteorder("=")
    if row.converts and not (skipna and result.kind in "biu"):
        # Elements become integers only after NaN is dropped, since NaN has no integer.
        output = result
    op = bind(monoid, element, output, f"groupby_reduce by {func}", skipna)
    fill_value, least = asked.fill_value, asked.least
    if monoid.positional and row.finish is only_field:
        nothing = missing(element)
        if least == 1 and fill_value is not None and (skipna or element.kind not in "fc"):
            # Indices show which groups have no element, so none need be counted.
            least, nothing = 0, np.asarray(fill_value, filled_dtype(result, fill_value))[()]
        finish = partial(_where_any, nothing)
    if row.without_nan is not None and row.skipna and not least:
        # As in flox, a group of only NaN counts as one without elements.
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
    """Return a statistic of an operation, with the operations that count elements if needed."""
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
    """Return the statistic with sums of floats compensated for rounding errors in float64."""
    op, *counts = statistic.ops
    exact = compensated(op) if op.element.kind == "f" else op
    if not exact.monoid.has_excess:
        return statistic
    finish = partial(_settled, statistic.finish)
    return replace(statistic, ops=(exact, *counts), finish=finish)


def filled_dtype(result: np.dtype[Any], fill_value: Any) -> np.dtype[Any]:
    """Return the dtype that holds both results and the fill value."""
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
    """Return the results of a statistic from `states`, where those of its operations are `at`.

    `absent` is a mask of the groups known to have no elements, or None.
    """
    fill, (state, *counts) = statistic.fill, [states[i] for i in at]
    value = statistic.finish(state)
    if len(counts) > (fill.least > 0):
        empty = counts[-1][0] == 0
        absent = empty if empty.any() else None
    if absent is not None and not (fill.value is None and fill.nothing is IDENTITY):
        instead = fill.nothing if fill.value is None else fill.value
        value = np.where(as_kind(absent, value), np.asarray(instead, statistic.dtype)[()], value)
    if fill.least > 0:
        few = counts[0][0] < fill.least
        if few.any():
            value = np.where(as_kind(few, value), fill.required(statistic.name), value)
    return value


def as_kind(mask: Any, value: Any) -> Any:
    """Return a mask as the same kind of array as `value`; small tables are on the host."""
    return chunks.asarray(mask, chunks.kind(value))


def _settled(finish: Finish, state: State) -> Any:
    return finish(settle(state))


def _where_any(nothing: Any, state: State) -> Any:
    value, index = state
    none = index == NO_INDEX
    if chunks.kind(value) == "numpy" and not none.any():
        return value
    return np.where(none, nothing, value)

"""Labels of groups: the distinct groups, and the codes of known labels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, broadcast_to
from dask.base import is_dask_collection
from dask.tokenize import normalize_token

from dask_coop import chunks
from dask_coop.algebra.bins import find_steps
from dask_coop.api.arguments import rechunk
from dask_coop.api.unique import sortable
from dask_coop.chunks.labels import Coder, Intervals, Values, are_consecutive
from dask_coop.errors import Declined, Refused
from dask_coop.graph import executor, found_groups
from dask_coop.graph.found_groups import Found
from dask_coop.graph.grouped import Known, Lazy

Labels = np.ndarray[Any, Any]


def find_labels(
    caller: str,
    by: Sequence[Any],
    x: da.Array,
    expected: Any,
    isbin: Any,
    sort: bool,
) -> tuple[Known | Lazy | Found, tuple[Any, ...]]:
    """Return the labels of the elements of `x`, and the groups of each label.

    Raises
    ------
    TypeError
        If labels cannot be sorted.
    ValueError
        If labels do not fit the array, or one of several labels is lazy and its expected groups
        are missing.
    """
    if not by:
        raise TypeError(f"{caller} needs labels behind the array: {caller}(x, labels, func=...)")
    labels = [_as_labels(label) for label in by]
    shape = _common_shape(caller, labels, x)
    wanted = _expected(expected, len(labels))
    bins = [isbin] * len(labels) if isinstance(isbin, bool | np.bool_) else [*isbin]
    if len(bins) != len(labels):
        raise ValueError(f"isbin has {len(bins)} truth values for {len(labels)} labels")
    like_x = x.chunks[x.ndim - len(shape) :]
    if len(labels) == 1 and is_dask_collection(labels[0]) and wanted[0] is None and not bins[0]:
        if executor.runner() is not None:
            raise Declined("labels are lazy")
        label = rechunk(sortable(caller, labels[0], "labels"), _sides(labels[0], like_x))
        return Found(broadcast_to(label, shape, like_x)), (found_groups.groups(label),)
    coded = [
        _coded(i, label, expected_of, bool(binned), sort)
        for i, (label, expected_of, binned) in enumerate(zip(labels, wanted, bins, strict=True))
    ]
    groups = tuple(distinct for _, _, distinct in coded)
    sizes = tuple(map(len, groups))
    coder = Coder(tuple(coder for _, coder, _ in coded), sizes)
    labels = [label for label, _, _ in coded]
    if not any(map(is_dask_collection, labels)):
        codes = coder.codes(
            [label.reshape((1,) * (len(shape) - label.ndim) + label.shape) for label in labels]
        )
        return Known(np.asarray(codes)), groups
    arrays = tuple(
        broadcast_to(rechunk(asanyarray(label), _sides(label, like_x)), shape, like_x)
        for label in labels
    )
    return Lazy(arrays, coder), groups


def _as_labels(value: Any) -> Any:
    if is_dask_collection(value):
        chunks.kind(value._meta, "labels")
        chunks.refuse_masked("groupby_reduce", value._meta)
        return value
    chunks.refuse_masked("groupby_reduce", value)
    # Lists, pandas' arrays and other values that are no chunks: np.asarray converts them below.
    with suppress(Refused):
        value = chunks.asarray(value, "numpy")
    labels = np.asarray(value)
    if labels.dtype.kind == "O":
        return _plain(labels)
    return labels if labels.dtype.isnative else labels.astype(labels.dtype.newbyteorder("="))


def _plain(labels: Labels) -> Labels:
    """Return an array of objects, such as pandas' strings, as strings or numbers."""
    plain = np.array(labels.tolist())
    if plain.dtype.kind == "O" or plain.shape != labels.shape:
        odd = next((label for label in labels.flat if not isinstance(label, str)), None)
        raise TypeError(
            f"labels are numbers, dates or strings, and all of one kind; got {odd!r} among objects"
        )
    if plain.dtype.kind in "SU":
        for label in labels.flat:
            if not isinstance(label, str | bytes):
                raise TypeError(
                    f"labels are strings, and one is {label!r}; give each of them a string"
                )
    return plain


def _common_shape(caller: str, labels: Sequence[Any], x: da.Array) -> tuple[int, ...]:
    """Return the lengths of the axes of `x` that the labels cover."""
    ndim = max(label.ndim for label in labels)
    if not ndim or ndim > x.ndim:
        raise ValueError(
            f"{caller} takes labels of 1 to {x.ndim} axes, those of the array's last ones; "
            f"got shape {max((label.shape for label in labels), key=len)}"
        )
    shape = tuple(x.shape[x.ndim - ndim :])
    if any(n != n for n in shape):
        raise ValueError(
            f"{caller} needs the number of elements along the labels' axes; count them by "
            "x.compute_chunk_sizes(), or for a dataframe by df.to_dask_array(lengths=True)"
        )
    for label in labels:
        lengths = (1,) * (ndim - label.ndim) + tuple(label.shape)
        if any(n not in (1, length) for n, length in zip(lengths, shape, strict=True)):
            raise ValueError(
                f"labels of shape {tuple(label.shape)} do not fit the last axes of an array of "
                f"shape {x.shape}: each has to be as long, or of length 1"
            )
    return shape


def _sides(label: Any, like_x: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    last = like_x[len(like_x) - label.ndim :]
    return tuple((1,) if n == 1 else sizes for n, sizes in zip(label.shape, last, strict=True))


def _expected(expected: Any, count: int) -> list[Any]:
    if expected is None:
        return [None] * count
    if count == 1 and not isinstance(expected, tuple):
        return [expected]
    if not isinstance(expected, tuple):
        raise ValueError(
            f"expected_groups of {count} labels is a tuple with the groups of each, or None, got "
            f"{type(expected).__name__}"
        )
    if len(expected) != count:
        raise ValueError(
            f"expected_groups has the groups of {len(expected)} labels, and there are {count}"
        )
    return [*expected]


def _coded(
    number: int, labels: Any, expected: Any, isbin: bool, sort: bool
) -> tuple[Any, Values | Intervals | None, Any]:
    """Return labels (codes if known), the coder of lazy labels (else None), and the groups."""
    coder: Values | Intervals
    if _is_intervals(expected) or isbin:
        if expected is None or not np.ndim(expected):
            raise ValueError(
                f"isbin needs the edges of bins, such as numpy.linspace(low, high, n + 1), as "
                f"expected_groups of label {number}; got {expected!r}"
            )
        coder, groups = _intervals(number, labels.dtype, expected, sort)
    elif expected is not None:
        coder, groups = _values(number, labels.dtype, expected, sort)
    elif is_dask_collection(labels):
        raise ValueError(
            f"label {number} of several is lazy, so that the groups it has are not known: give "
            "expected_groups, or compute it first"
        )
    else:
        codes, groups = _distinct(labels, sort)
        return codes, None, groups
    if is_dask_collection(labels):
        return labels, coder, groups
    return coder.codes(labels), None, groups


def _distinct(labels: Labels, sort: bool) -> tuple[Labels, Labels]:
    """Return codes and groups of known labels; NaN has the code -1."""
    values, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    codes = codes.reshape(labels.shape)
    if labels.dtype.kind in "fcmM":
        # NaN and NaT come last.
        n = int((values == values).sum())
        values, first = values[:n], first[:n]
        codes = np.where(codes < n, codes, -1)
    if sort:
        return codes, values
    order = np.argsort(first)
    numbers = np.empty(len(order) + 1, "i8")
    numbers[order], numbers[-1] = np.arange(len(order)), -1
    return numbers[codes], values[order]


def _values(number: int, dtype: np.dtype[Any], expected: Any, sort: bool) -> tuple[Values, Labels]:
    groups = np.asarray(expected)
    if groups.dtype.kind == "O":
        groups = _plain(groups)
    if groups.ndim != 1:
        raise ValueError(
            f"expected_groups of label {number} are its groups, in an array of one axis, got shape "
            f"{groups.shape}"
        )
    if groups.size and (groups.dtype.kind in "SU") != (dtype.kind in "SU"):
        raise TypeError(f"expected_groups are {groups.dtype}, and label {number} is {dtype}")
    if groups.dtype.kind in "biuf" and (groups[1:] > groups[:-1]).all():
        return Values(groups), groups
    order = np.argsort(groups, kind="stable")
    values = groups[order]
    if (values[1:] == values[:-1]).any():
        twice = values[1:][values[1:] == values[:-1]][0]
        raise ValueError(f"expected_groups of label {number} has {twice!r} twice")
    return (Values(values), values) if sort else (Values(values, order), groups)


def _token(groups: Values) -> Any:
    """Return a short token for a million consecutive integers, instead of reading them all."""
    values, name = groups.sorted, "dask_coop.Values"
    if groups.numbers is None and are_consecutive(values):
        return name, str(values.dtype), int(values[0]), len(values)
    return name, normalize_token(values), normalize_token(groups.numbers)


normalize_token.register(Values, _token)


def _is_intervals(expected: Any) -> bool:
    return type(expected).__name__ == "IntervalIndex"


def _intervals(
    number: int, dtype: np.dtype[Any], expected: Any, sort: bool
) -> tuple[Intervals, Any]:
    if _is_intervals(expected):
        index = expected.sort_values() if sort else expected
        left, right = np.asarray(index.left), np.asarray(index.right)
        if index.closed not in ("left", "right"):
            raise NotImplementedError(
                f"bins closed on {index.closed} sides are not taken; close them 'left' or 'right'"
            )
        if not np.array_equal(left[1:], right[:-1]):
            raise ValueError(f"the bins of label {number} are to begin where others end: {index}")
        edges, closed, groups = np.append(left, right[-1:]), index.closed, index.to_numpy()
    else:
        edges, closed = np.asarray(expected), "right"
        groups = _as_intervals(edges)
    if dtype.kind in "mM":
        unit = np.result_type(dtype, edges)
        if unit != dtype:
            raise TypeError(
                f"label {number} is {dtype}, and its bins are {edges.dtype}; convert it"
            )
        edges, dtype = edges.astype(dtype).view("i8"), np.dtype("i8")
    return Intervals(find_steps(edges, closed == "right", dtype), max(0, len(edges) - 1)), groups


def _as_intervals(edges: Labels) -> Any:
    """Return bins as pandas' intervals, or as pairs of edges if pandas is not installed."""
    try:
        from pandas import IntervalIndex  # type: ignore[import-untyped]
    except ImportError:
        pairs = np.empty(max(0, len(edges) - 1), object)
        pairs[:] = [*zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
        return pairs
    return IntervalIndex.from_breaks(edges).to_numpy()

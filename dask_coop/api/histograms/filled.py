"""Histograms of boost-histogram and hist that chunks fill themselves.

Axes that grow, turn or have categories, and storages of means, are filled by their own ``fill``, a
copy for each chunk, and the copies are added in the order of the chunks::

    x0 --fill--> h0 -+
    x1 --fill--> h1 -+-add--> h01 -+
    x2 --fill--> h2 -+             +-add--> the histogram to fill, with all of them

Categories are so in the order in which the samples have them.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from dask.array.core import Array

from dask_coop import chunks
from dask_coop.chunks.dtypes import casts
from dask_coop.graph.reduce import folded

#: The kinds of samples by that of an axis: of numbers, integers, bool and strings.
_KINDS = {"Integer": "biu", "IntCategory": "biu", "Boolean": "b", "StrCategory": "UTO"}
_CONVERTED = {"biuf": "f8", "biu": "i8", "b": "bool", "UTO": "str"}


def fills_itself(package: Any, axis: Any) -> bool:
    """Return whether there are no fixed numbers between which an axis counts."""
    kinds, traits = package.axis, axis.traits
    if traits.circular or traits.growth:
        return True
    if isinstance(axis, kinds.Variable):
        # The last bin includes its right edge.
        return not traits.overflow and bool(np.isinf(axis.edges[-1]))
    if isinstance(axis, kinds.Regular):
        transform = axis.transform
        known = transform is None or repr(transform) in ("log", "sqrt")
        return not known or bool(axis.edges[0] > axis.edges[-1])
    return not isinstance(axis, kinds.Integer | kinds.Boolean)


def fill_by_chunks(
    package: Any, empty: Any, samples: Sequence[Array], weights: Array | None, values: Array | None
) -> Any:
    """Return a histogram, lazily, with samples added by its own ``fill``.

    Parameters
    ----------
    package : module
        boost_histogram.
    empty : boost_histogram.Histogram
        The histogram to add to.
    samples : sequence of dask.array.Array
        In equal chunks, one for each axis.
    weights, values : dask.array.Array or None
        In the same chunks: the weights, and the numbers to take means of.

    Raises
    ------
    TypeError
        If an axis does not take samples of their dtype, or depends on their order.
    """
    for axis, x in zip(empty.axes, samples, strict=True):
        named = f"to_hist does not count into the axis {axis!r}"
        kind = next((k for k in type(axis).__mro__ if k.__module__.startswith("boost")), type(axis))
        if x.dtype.kind not in (kinds := _KINDS.get(kind.__name__, "biuf")):
            to = _CONVERTED[kinds]
            raise TypeError(f"{named} samples of dtype {x.dtype}; convert them by .astype({to!r})")
        if isinstance(axis, package.axis.Variable) and axis.traits.growth:
            raise TypeError(f"{named}, whose edges depend on the order of samples; use Regular")
    template = empty.copy()
    template.reset()
    optional = {"weights": weights, "values": values}
    return folded(
        "to_hist",
        samples,
        {name: array for name, array in optional.items() if array is not None},
        partial(_fill_chunk, template=pickle.dumps(template)),
        _add,
        partial(_added, pickle.dumps(empty)),
    )


# Inside the tasks.


@casts
def _fill_chunk(*coordinates: Any, template: bytes, weights: Any = None, values: Any = None) -> Any:
    """Return the histogram of a chunk's samples."""
    import boost_histogram

    filled = pickle.loads(template)
    arrays = [chunks.asarray(x, "numpy") for x in (*coordinates, weights, values) if x is not None]
    columns = [_taken(np.ma.getdata(x)).reshape(-1) for x in arrays]
    names = [name for name, x in (("weight", weights), ("sample", values)) if x is not None]
    for taken in _in_turn(filled.axes, arrays, columns):
        some = [x[taken] for x in columns]
        options = dict(zip(names, some[len(coordinates) :], strict=True))
        try:
            # As that of boost-histogram, because named axes have another one.
            boost_histogram.Histogram.fill(filled, *some[: len(coordinates)], **options)
        except RuntimeError as error:
            raise TypeError(
                "samples of an axis of strings must be strings, and what is missing is none; fill "
                "or drop it first"
            ) from error
    return filled


def _in_turn(axes: Sequence[Any], arrays: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    """Return which samples to count, those first whose coordinates are finite where axes grow."""
    growing = [
        x
        for axis, x in zip(axes, columns, strict=False)
        if axis.traits.growth and x.dtype.kind == "f"
    ]
    is_masked = any(isinstance(x, np.ma.MaskedArray) for x in arrays)
    if not growing and not is_masked:
        return [slice(None)]
    rows = ~reduce(np.logical_or, map(np.ma.getmaskarray, arrays)).reshape(-1)
    # Axes of boost-histogram that grow lose the place of what is above them.
    finite = reduce(np.logical_and, map(np.isfinite, growing), rows)
    return [finite, rows & ~finite]


def _taken(x: Any) -> Any:
    """Return an array of a dtype that ``fill`` takes."""
    if x.dtype.kind == "f":
        return x.astype("f8", copy=False)
    if x.dtype == np.uint64:
        # The fill refuses numbers beyond int32, so this clip changes no result.
        return np.minimum(x, np.uint64(1 << 62)).astype("i8")
    return x


def _added(template: bytes, filled: Any) -> Any:
    return _add([pickle.loads(template), filled])


def _add(histograms: Sequence[Any]) -> Any:
    """Return the sum of histograms that may have grown."""
    return reduce(_add_two, histograms)


def _add_two(a: Any, b: Any) -> Any:
    import boost_histogram

    def joined(p: Any, q: Any) -> Any:
        """Return an axis that has the bins of two, which grew from the same."""
        if p == q or not isinstance(p, boost_histogram.axis.Regular):
            return None
        grown = boost_histogram.Histogram(p)
        grown.fill(q.centers[[0, -1]])
        return grown.axes[0]

    axes = [joined(p, q) for p, q in zip(a.axes, b.axes, strict=True)]
    if any(axis is not None for axis in axes):
        a, b = _placed(a, axes), _placed(b, axes)
    # boost-histogram joins categories and integers, and forgets that counts are variances.
    added = a + b
    if all(vars(h).get("_variance_known") for h in (a, b)):
        vars(added)["_variance_known"] = True
    return added


def _placed(histogram: Any, axes: Sequence[Any]) -> Any:
    """Return a histogram with its contents at their places on longer axes; None leaves an axis."""
    both = [*zip(axes, histogram.axes, strict=True)]
    placed = type(histogram)(
        *(old if axis is None else axis for axis, old in both), storage=histogram.storage_type()
    )
    kept = vars(histogram).items()
    vars(placed).update({name: v for name, v in kept if name not in ("axes", "_hist")})
    places = []
    for axis, old in both:
        place = np.arange(old.extent)
        if axis is not None:
            place += int(axis.index(old.centers[0]))
            # Underflow and overflow stay the outermost.
            place[0] = 0
            place[-1] = axis.extent - 1
        places.append(place)
    into = placed.view(flow=True)
    np.asarray(into)[np.ix_(*places)] = np.asarray(histogram.view(flow=True))
    return placed

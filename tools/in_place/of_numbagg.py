"""Functions of chunks in the place of numbagg's: its decorators call ours."""

import numpy as np
from by_chunks import chunked, compute, pytest_sessionfinish, refused  # noqa: F401
from numbagg import decorators

import dask_coop as dc


def aggregate(name, x, *, axis=None, ddof=1):
    x = chunked(x)
    axis = axis if axis is None else tuple(map(int, np.ravel(axis)))
    if name in ("nanstd", "nanvar"):
        return getattr(dc, name)(x, axis, ddof=ddof)
    if name in ("nancount", "count"):
        return dc.count_nonzero(~np.isnan(x), axis)
    if name in ("anynan", "allnan"):
        return getattr(dc, name[:3])(np.isnan(x), axis)
    axis = axis[0] if axis and "arg" in name and len(axis) == 1 else axis
    return getattr(dc, name)(x, axis)


def one_axis(axis):
    if isinstance(axis, tuple):
        if not axis:
            raise NotImplementedError("no axis")
        if len(axis) > 1:
            raise ValueError(f"only one axis can be passed; Only one, got {axis}")
        (axis,) = axis
    return axis


def move(name, *arrays, window, min_count=None, axis=-1, ddof=None):
    if len(arrays) > 1 or min_count == 0:
        raise NotImplementedError("two arrays, or no minimum")
    more = {"ddof": 1 if ddof is None else ddof} if name in ("move_std", "move_var") else {}
    return getattr(dc, name)(chunked(*arrays), window, min_count, one_axis(axis), **more)


def move_exp(name, *arrays, alpha, min_weight=0, axis=-1):
    if np.ndim(alpha) or min_weight:
        raise NotImplementedError("weights differ, or have a minimum")
    function = getattr(dc, name.replace("move_exp_nan", "ewm_"))
    return function(*map(chunked, arrays), axis=one_axis(axis), alpha=float(alpha))


def fill(name, x, *, limit=None, axis=-1):
    return getattr(dc, name)(chunked(x), axis, limit)


def quantiles(name, x, quantiles, axis=None):
    axis = axis if axis is None else tuple(map(int, np.ravel(axis)))
    return dc.nanquantile(chunked(x), quantiles, axis)


def grouped(name, values, labels, *, ddof=1, num_labels=None, axis=None):
    func = name.removeprefix("group_").replace("nancount", "count")
    if func == "nansum_of_squares":
        raise NotImplementedError("sums of squares are not ours")
    values, labels = np.asarray(values), np.asarray(labels)
    if func in ("nanstd", "nanvar") and values.dtype == bool:
        raise NotImplementedError("numbagg has no deviations of bool")
    if axis is None and labels.shape != values.shape:
        raise ValueError("axis required if values and labels have different shapes")
    axes = range(values.ndim) if axis is None else map(int, np.ravel(axis))
    axes = [n % values.ndim for n in axes]
    if labels.shape != tuple(values.shape[n] for n in axes):
        raise ValueError("values must have same shape along axis as labels")
    values = np.moveaxis(values, axes, range(-len(axes), 0))
    values = values.astype("i4") if values.dtype == bool else values
    if func in ("nanany", "nanall"):
        func = func[3:]
        values = np.where(np.isnan(values), func == "all", values)
    keep = "f8" if func in ("nanmean", "nanstd", "nanvar") else values.dtype
    keep = values.dtype if values.dtype.kind == "f" else keep
    num_labels = int(labels.max()) + 1 if num_labels is None else num_labels
    return dc.groupby_reduce(
        chunked(values),
        chunked(labels),
        func=func,
        expected_groups=np.arange(num_labels),
        fill_value=np.nan if "arg" in func else None,
        finalize_kwargs={"ddof": ddof} if func in ("nanstd", "nanvar") else None,
    )[0].astype(keep)


#: By class of numbagg's functions.
OURS = {
    "ndaggregate": aggregate,
    "ndmove": move,
    "ndmoveexp": move_exp,
    "ndfill": fill,
    "ndquantile": quantiles,
    "groupndreduce": grouped,
}


def put(kind, call):
    before = kind.__call__

    def in_place(self, *arguments, **keywords):
        name = self.__name__
        try:
            return compute(name, call, name, *arguments, **keywords)
        except (AttributeError, NotImplementedError) as error:
            refused[f"{name}: {error}"] += 1
            return before(self, *arguments, **keywords)

    kind.__call__ = in_place


for name, call in OURS.items():
    put(getattr(decorators, name), call)

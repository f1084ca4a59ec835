"""Straight lines through pairs of elements: linregress; and pairs as complex numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray
from dask.array.utils import validate_axis

from dask_coop import chunks
from dask_coop.algebra.monoids import COUNT, State
from dask_coop.algebra.operation import Operation, bind
from dask_coop.algebra.paired import COMOMENTS
from dask_coop.api.arguments import (
    SplitEvery,
    in_shape_of,
    pairs_of,
    placed_along,
    require_known_sizes,
)
from dask_coop.api.call.public import Engine, public
from dask_coop.api.call.results import LinregressResult
from dask_coop.graph import reduce as graph_reduce

#: SciPy's, which keeps t finite where all points lie on a line.
_TINY = 1e-20

#: The standard deviation of equal elements, as a multiple of their mean, which has rounding errors.
_SAME = 1e-17


@public("reduction")
def linregress(
    x: Any,
    y: Any,
    alternative: str = "two-sided",
    *,
    axis: int = 0,
    nan_policy: str = "propagate",
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> LinregressResult:
    """Calculate linear least-squares regressions, as `scipy.stats.linregress` does.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Positions: of the shape of `y`, or one-dimensional and as long as its axis.
    y : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks.
    alternative : {"two-sided", "less", "greater"}
        What the p-value holds against a slope of 0: another, a negative or a positive slope.
    axis : int
        The axis along which elements are the points of a line.
    nan_policy : {"propagate", "omit"}
        Whether results are NaN if an element is, or points with NaN are left out. To raise an
        error would take the values while the graph is built.
    keepdims, split_every
        As for :func:`sum`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    LinregressResult
        A named tuple of lazy float64 arrays with chunks of the kind of `y`'s: slope, intercept,
        rvalue, pvalue, stderr and intercept_stderr. NaN where there are fewer than two points, or
        `x` does not vary; p-values and errors of two points are NaN, too, as in SciPy 1.18.

    Raises
    ------
    TypeError, AxisError
        As for :func:`sum`, and for complex numbers and masked arrays.
    ValueError
        If `x` does not fit, or `alternative` or `nan_policy` is none of those above.

    Notes
    -----
    Both arrays are read once. Counts, means and products of deviations from the means of all chunks
    are combined as in :func:`cov`. Computing the p-value needs SciPy.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> line = dc.linregress([0, 1, 2, 3], da.from_array([1.0, 3.0, 5.0, 7.0], chunks=2))
    >>> float(line.slope), float(line.intercept)
    (2.0, 1.0)
    """
    require_alternative(alternative)
    if nan_policy not in ("propagate", "omit"):
        raise ValueError(
            f"nan_policy of linregress must be 'propagate' or 'omit', got {nan_policy!r}; 'raise' "
            "would compute the arrays"
        )
    values, places = asanyarray(y), asanyarray(x)
    axis = validate_axis(axis, values.ndim)
    for array in (values, places):
        chunks.refuse_masked("linregress", array._meta)
        bind(COMOMENTS, array.dtype, array.dtype, "linregress")
    require_known_sizes("linregress", values, places)
    if places.ndim == 1 and values.ndim > 1:
        places = placed_along(places, (axis,), values.ndim)
    if places.ndim != values.ndim or places.shape[axis] != values.shape[axis]:
        raise ValueError(
            f"x of shape {places.shape} does not fit y of shape {values.shape} along axis {axis}"
        )
    element = np.result_type(values.dtype, places.dtype)
    op = bind(COMOMENTS, element, np.dtype("f8"), "linregress", nan_policy == "omit")
    finish = partial(of_line, alternative)
    outputs = {name: (partial(finish, name), "f8") for name in LinregressResult._fields}
    return LinregressResult(
        *graph_reduce.reduction(
            op, values, (axis,), keepdims, split_every, outputs, in_shape_of("x", places, values)
        )
    )


def require_alternative(alternative: Any) -> None:
    """Raise ValueError unless p-values know the alternative."""
    if alternative not in _SIDES:
        raise ValueError(f"alternative must be one of {', '.join(_SIDES)}, got {alternative!r}")


def between(
    name: str,
    a: da.Array,
    b: da.Array,
    axes: tuple[int, ...],
    ddof: float,
    dtype: Any,
    weights: da.Array | None = None,
) -> da.Array:
    """Return covariances or correlations of pairs of elements without NaN, as xarray has them.

    Parameters
    ----------
    name : {"cov", "corr"}
    a, b : dask.array.Array
        Of one shape.
    axes : tuple of int
        Sorted and not negative.
    ddof : float
        Subtracted from the number of pairs, for covariances.
    dtype : dtype
        That of the result.
    weights : dask.array.Array, optional
        Of the shape of `a`.
    """
    for array in (a, b):
        chunks.refuse_masked(name, array._meta)
        bind(COMOMENTS, array.dtype, array.dtype, name)
    finish = _correlation if name == "corr" else partial(_covariance, ddof)
    second, element = in_shape_of("b", b, a), np.result_type(a.dtype, b.dtype)
    if weights is not None:
        chunks.refuse_masked(name, weights._meta)
        bind(COMOMENTS, weights.dtype, weights.dtype, name)
        finish = _correlation if name == "corr" else partial(_covariance, 0)
        element = np.result_type(element, "c8")
        a, second = pairs_of(name, a, second, element), in_shape_of("weights", weights, a)
    op = Operation(COMOMENTS, element, np.dtype("f8"), skipna=True)
    (result,) = graph_reduce.reduction(op, a, axes, False, None, {name: (finish, dtype)}, second)
    if weights is None or name == "corr" or not ddof:
        return result
    # As in xarray, degrees of freedom are of pairs, whatever they weigh.
    count = Operation(COUNT, element, np.dtype("i8"), skipna=True)
    outputs = {"degrees": (partial(_per_degree, ddof), "f8")}
    (scale,) = graph_reduce.reduction(count, a, axes, False, None, outputs)
    return (result * scale).astype(dtype)


# Inside the tasks.


def _correlation(state: State) -> Any:
    with np.errstate(all="ignore"):
        return state[7] / np.sqrt(state[3] * state[6])


def _covariance(ddof: float, state: State) -> Any:
    count = state[0]
    with np.errstate(all="ignore"):
        return np.where(count > 0, state[7] / (count - ddof), np.nan)


def _per_degree(ddof: float, state: State) -> Any:
    (count,) = state
    with np.errstate(all="ignore"):
        return count / (count - ddof)


#: By alternative, the t of which the p-value is the lower tail, and by how much to multiply that.
_SIDES: dict[str, tuple[Any, int]] = {
    "two-sided": (lambda t: -np.abs(t), 2),
    "less": (lambda t: t, 1),
    "greater": (lambda t: -t, 1),
}


def of_line(alternative: str, name: str, state: State) -> Any:
    """Return a field of `LinregressResult` from a state of pairs whose first variable is y."""
    n, y, y_short, yy, x, x_short, xx, xy = state
    with np.errstate(all="ignore"):
        yy, xx = (
            np.where(np.sqrt(squares / n) <= _SAME * abs(mean), 0, squares)
            for squares, mean in ((yy, y), (xx, x))
        )
        xy = np.where((yy == 0) | (xx == 0), 0, xy)
        slope = np.where(n > 1, xy / xx, np.nan)
        r = np.clip(xy / np.sqrt(xx * yy), -1, 1)
        # Where y does not vary; where x does not, there is no line.
        r = np.where((yy == 0) & (xx > 0), np.nan, r)
        # Two points always lie on a line, which says nothing of errors.
        degrees = np.where(n > 2, n - 2, np.nan)
        error = np.sqrt((1 - r) * (1 + r) * (yy / xx) / degrees)
        match name:
            case "slope":
                return slope
            case "intercept":
                return (y - slope * x) + (y_short - slope * x_short)
            case "rvalue":
                return r
            case "pvalue":
                return _tail(alternative, r, degrees)
            case "stderr":
                return error
        square = xx / n + x * x
        return error * np.sqrt(square)


def _tail(alternative: str, r: Any, degrees: Any) -> Any:
    """Return the probability of a coefficient as far from 0 as `r`, on the host."""
    try:
        from scipy.special import stdtr
    except ImportError as error:
        raise ImportError("p-values of linregress need SciPy: pip install scipy") from error
    r, degrees = (chunks.asarray(value, "numpy") for value in (r, degrees))
    side, times = _SIDES[alternative]
    t = r * np.sqrt(degrees / ((1 - r + _TINY) * (1 + r + _TINY)))
    return times * stdtr(degrees, side(t))

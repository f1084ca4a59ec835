"""NumPy's ufuncs as monoids.

Most ufuncs map to a function of the library with the same results and dtypes. For the others, this
module has the arguments of a Monoid.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np

from dask_coop.algebra.monoids import LOGADDEXP
from dask_coop.algebra.statistics import only_field
from dask_coop.api import extrema, sums
from dask_coop.api.arguments import ReductionArguments, as_dtype, reduce_array

_BITWISE = {np.bitwise_and: "a & b", np.bitwise_or: "a | b", np.bitwise_xor: "a ^ b"}

#: The supported ufuncs, for messages.
NAMES = (
    "add, multiply, maximum, minimum, logical_and, logical_or, logical_xor, bitwise_and, "
    "bitwise_or, bitwise_xor and logaddexp"
)


def reduction(ufunc: np.ufunc) -> Callable[..., da.Array] | None:
    """Return the library's function that reduces as a ufunc does, or None."""
    functions: dict[np.ufunc, Callable[..., da.Array]] = {
        np.add: sums.sum,
        np.multiply: sums.prod,
        np.minimum: extrema.min,
        np.maximum: extrema.max,
        np.logical_or: sums.any,
        np.logical_and: sums.all,
        np.logaddexp: _sum_exponentials,
    }
    return functions.get(ufunc)


def parts(ufunc: Any, element: np.dtype[Any], caller: str) -> dict[str, Any]:
    """Return the arguments of a Monoid that combines elements of a dtype as a ufunc does.

    Raises
    ------
    TypeError
        If the ufunc or the dtype is not supported; the message names the function `caller`.
    """
    if ufunc is np.logical_xor:
        cuda = {"lift": "truth(x)", "combine": "a != b"}
        return _commuting(ufunc, False, "?") | {"lift": _truth, "cuda": cuda}
    if not isinstance(ufunc, np.ufunc) or ufunc not in _BITWISE:
        raise refusal(caller, ufunc)
    if element.kind not in "biu":
        raise TypeError(
            f"{caller} by numpy.{ufunc.__name__} does not take dtype {element}; it takes bool and "
            "integers"
        )
    identity = np.zeros((), element)
    if ufunc is np.bitwise_and:
        identity = ~identity
    return _commuting(ufunc, identity.item(), element) | {"cuda": _BITWISE[ufunc]}


def logaddexp_dtype(element: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of numpy.logaddexp's result for elements of a dtype."""
    if element.kind not in "biu":
        return element.newbyteorder("=")
    empty = np.zeros(0, element)
    return np.logaddexp(empty, empty).dtype


def refusal(caller: str, value: Any) -> TypeError:
    """Return the TypeError of the function `caller` for a value that is no monoid."""
    rows = ", a row of dask_coop.monoids with one field" if caller == "scan" else ""
    name = getattr(value, "__name__", None) or reprlib.repr(value)
    return TypeError(
        f"{caller} takes a dask_coop.Monoid{rows} or one of NumPy's ufuncs {NAMES}; got "
        f"{type(value).__name__} {name}"
    )


def _sum_exponentials(
    x: da.Array, axis: Any, *, keepdims: bool, split_every: Any, out: da.Array | None
) -> da.Array:
    result = logaddexp_dtype(x.dtype)
    x = as_dtype(x, "f8") if x.dtype.kind in "biu" else x
    arguments = ReductionArguments(axis, keepdims, split_every, out)
    return reduce_array(LOGADDEXP, "logaddexp", only_field, x, arguments, result=result)


def _commuting(ufunc: Any, identity: Any, dtype: Any) -> dict[str, Any]:
    return {
        "name": ufunc.__name__,
        "combine": ufunc,
        "identity": identity,
        "dtype": dtype,
        "commutative": True,
        "check": False,
    }


def _truth(x: Any) -> Any:
    return x != 0

"""Unpack numbers as the conventions of CF say, in one pass: NaN, or ``code * scale + offset``.

xarray does so by a pass for each step: convert, compare, write NaN, convert, multiply, add. Here a
compiled loop makes all steps for one element after the other, in the dtypes that NumPy takes for
them, so values are the same to the last bit::

    _scale_offset_decoding(_apply_mask(codes))  -->  Unpacking((mask, scale))(codes)

Without Numba, for few elements, or where a step is not one of these, xarray's functions run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from dask_coop.errors import NotSupported
from dask_coop.files import stored

#: The module of xarray's functions, and their names.
_HOME, _MASK, _SCALE = "xarray.coding.variables", "_apply_mask", "_scale_offset_decoding"

#: Fewer elements are not worth the compilation of a loop.
_FEWEST = 1 << 16


class _Steps(NamedTuple):
    """The steps of unpacking; None for those that are left out.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the results.
    fill : scalar
        The code of missing values, in the dtype of codes.
    scale, offset : scalar
        In the dtype in which NumPy multiplies and adds.
    """

    dtype: np.dtype[Any]
    fill: Any
    scale: Any
    offset: Any


class Unpacking:
    """A function of chunks that makes the steps of xarray's functions.

    Parameters
    ----------
    functions : tuple of functools.partial
        The first one is called first.
    """

    def __init__(self, functions: tuple[partial[Any], ...]) -> None:
        self.functions = functions

    def __call__(self, codes: Any) -> Any:
        """Return the numbers that codes stand for."""
        try:
            steps = self._steps(codes)
        except NotSupported:
            steps = None
        if not isinstance(codes, np.ndarray):
            reader = stored.reader()
            if steps is not None and reader is not None:
                return reader.unpack(codes, *steps)
            # Its functions are for NumPy.
            codes = codes.get()
        loop = None if steps is None or codes.size < _FEWEST else _loop()
        if steps is None or loop is None:
            for function in self.functions:
                codes = function(codes)
            return codes
        out = np.empty(codes.shape, steps.dtype)
        loop(codes.reshape(-1), steps.fill, steps.scale, steps.offset, out.reshape(-1))
        return out

    def then(self, function: partial[Any]) -> Unpacking:
        """Return this function followed by another one."""
        return type(self)((*self.functions, function))

    def _steps(self, codes: Any) -> _Steps:
        """Return the steps for codes, or raise NotSupported."""
        names = tuple(function.func.__name__ for function in self.functions)
        if names not in ((_MASK,), (_SCALE,), (_MASK, _SCALE)):
            raise NotSupported(f"the steps {names}")
        steps = dict(zip(names, (function.keywords for function in self.functions), strict=True))
        dtypes = {np.dtype(keywords["dtype"]) for keywords in steps.values()}
        dtype = max(dtypes)
        is_masked = isinstance(codes, np.ndarray) and type(codes) is not np.ndarray
        is_flat = not is_masked and codes.flags.c_contiguous and codes.dtype.isnative
        # Each code is exactly a number of the result's dtype.
        fits = codes.dtype.kind in "iu" and codes.dtype.itemsize * 2 <= dtype.itemsize <= 8
        if not (is_flat and fits and len(dtypes) == 1 and dtype.kind == "f"):
            raise NotSupported(f"{codes.dtype} as {dtypes}")
        fill = scale = offset = None
        if _MASK in steps:
            if not np.isnan(steps[_MASK]["decoded_fill_value"]):
                raise NotSupported("missing values other than NaN")
            fill = _code(steps[_MASK]["encoded_fill_values"], codes.dtype)
        if _SCALE in steps:
            scale = _applied(steps[_SCALE]["scale_factor"], dtype)
            offset = _applied(steps[_SCALE]["add_offset"], dtype)
        return _Steps(dtype, fill, scale, offset)


def is_unpacking(function: Any) -> TypeGuard[partial[Any]]:
    """Return whether a function of xarray's is a step of unpacking."""
    if not isinstance(function, partial) or function.args:
        return False
    inner = function.func
    return getattr(inner, "__module__", None) == _HOME and getattr(inner, "__name__", None) in (
        _MASK,
        _SCALE,
    )


def _code(fills: Any, dtype: np.dtype[Any]) -> Any:
    """Return the code that equals the only fill value, or raise NotSupported."""
    limits = np.iinfo(dtype)
    for fill in fills:
        is_code = not np.ndim(fill) and limits.min <= fill <= limits.max and fill == fill // 1
        if is_code and len(fills) == 1:
            return dtype.type(int(fill))
    raise NotSupported(f"the fill values {fills}")


def _applied(number: Any, dtype: np.dtype[Any]) -> Any:
    """Return a factor or a summand in the dtype in which NumPy applies it; None for None."""
    if number is None:
        return None
    applied = np.result_type(dtype, number)
    if np.ndim(number) or applied.kind != "f" or applied.itemsize not in (4, 8):
        raise NotSupported(f"a number of {applied}")
    return applied.type(number)


@cache
def _loop() -> Callable[..., None] | None:
    """Return the compiled loop; None without Numba."""
    try:
        from dask_coop.compiled.jit import jit
    except ImportError:
        return None
    return jit(unpack, allocates=False)


def unpack(codes: Any, fill: Any, scale: Any, offset: Any, out: Any) -> None:
    """Fill `out` with the numbers that codes stand for."""
    for i in range(codes.size):
        code = codes[i]
        number = out.dtype.type(code)
        if scale is not None:
            number = out.dtype.type(number * scale)
        if offset is not None:
            number = out.dtype.type(number + offset)
        if fill is not None and code == fill:
            number = out.dtype.type(np.nan)
        out[i] = number

"""The struct of a user's monoid, generated from the C++ of its lift and combine."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype


def define(
    name: str, state: np.dtype[Any], identity: tuple[Any, ...], cuda: tuple[str, str]
) -> str:
    """Return the definition of the struct template `name`, like those of kernels/monoids.cuh.

    Parameters
    ----------
    name : str
    state : numpy.dtype
        The structured dtype of a state; the elements of a vector are fields, such as ``low[0]``.
    identity : tuple of numpy.generic
        The neutral state.
    cuda : tuple of str
        The results of lift and combine, as an expression or as statements.
    """
    assert state.names is not None
    dtypes = [state[field] for field in state.names]
    # A vector is declared with its last element's index, and has the layout of its elements.
    last = {field.partition("[")[0]: field for field in state.names}
    members = "".join(
        f"{ctype(state[field])} {re.sub(r'[0-9]+(?=])', _next, field)}; " for field in last.values()
    )
    values = ", ".join(map(literal, identity))
    single = not is_struct(state)
    lift, combine = map(_body, cuda)
    return f"""template <typename T> struct {name} {{
  {f"using State = {ctype(dtypes[0])}" if single else f"struct State {{ {members}}}"};
  using Lift = OneByOne<{name}, T>;
  __device__ static State identity() {{ return {values if single else f"{{{values}}}"}; }}
  __device__ static State lift(T x) {{
    {lift}
  }}
  __device__ static State combine(State a, State b) {{
    {combine}
  }}
}};
"""


def is_struct(state: np.dtype[Any]) -> bool:
    """Return whether states are structs; a layout of one number is that number."""
    names = state.names or ()
    return len(names) > 1 or "[" in names[0]


def literal(value: Any) -> str:
    """Return a number in C++, by its bits, because NaN and infinities have no literals."""
    dtype = value.dtype
    if dtype.kind == "c":
        return f"{ctype(dtype)}{{{literal(value.real)}, {literal(value.imag)}}}"
    bits = hex(int(value.view(f"u{dtype.itemsize}")))
    match dtype.kind, dtype.itemsize:
        case "f", 2:
            return f"half_t{{{bits}}}"
        case "f", 4:
            return f"__int_as_float(int({bits}u))"
        case "f", 8:
            return f"__longlong_as_double(i64({bits}ull))"
        case _:
            return f"static_cast<{ctype(dtype)}>({bits}ull)"


def _next(index: re.Match[str]) -> str:
    return str(int(index[0]) + 1)


def _body(source: str) -> str:
    return source.strip() if re.search(r"\breturn\b", source) else f"return {source.strip()};"

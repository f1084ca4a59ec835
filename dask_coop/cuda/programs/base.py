"""The vocabulary of programs: the C++ names of dtypes and monoids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

CTYPES = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "i64",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "u64",
    "float16": "half_t",
    "float32": "float",
    "float64": "double",
    "complex64": "complex_t<float>",
    "complex128": "complex_t<double>",
}


@cache
def ctype(dtype: np.dtype[Any]) -> str:
    """Return the C++ name of `dtype`, or of elements with their mask."""
    if dtype.names:
        return f"Masked<{ctype(dtype[0])}>"
    return CTYPES[dtype.name]


@dataclass(frozen=True)
class Functor:
    """A monoid in C++: its name, and its definition if kernels/ lack it."""

    name: str
    definition: str = ""

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def within(self, template: str) -> Functor:
        """Return the instance of a struct template with this functor as its parameter."""
        return replace(self, name=f"{template}<{self.name}>")

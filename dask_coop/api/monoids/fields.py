"""The fields of a user's states, which may be small vectors.

The user's functions see a vector as one array, whose last axes are those of the vector. The layers
below (graphs, chunks and kernels) see one field for each element of the vector::

    [("low", "f4", (2,)), ("n", "i8")]      low[0]  low[1]  n

So only this module handles vectors, and the C++ source of a monoid, whose struct has arrays in the
same places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dask_coop.algebra.monoids import State

#: The largest state in bytes; blocks of threads hold states in shared memory.
STATE_BYTES = 128


class Member(NamedTuple):
    """A field as the user declares it; numbers have the shape ()."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Fields:
    """The fields of a state.

    Attributes
    ----------
    monoid : str
        The name of the monoid, for messages.
    members : tuple of Member
        The fields as the user declares them.
    single : bool
        Whether the user's functions take and return the only member itself instead of tuples.
    """

    monoid: str
    members: tuple[Member, ...]
    single: bool

    @classmethod
    def of(cls, monoid: str, dtype: np.dtype[Any]) -> Fields:
        """Return the fields of a dtype."""
        named = {"value": dtype} if dtype.names is None else {n: dtype[n] for n in dtype.names}
        members = []
        for field, declared in named.items():
            kind, shape = declared.subdtype or (declared, ())
            if not (field.isascii() and field.isidentifier()):
                raise ValueError(
                    f"field {field!r} of monoid {monoid!r} must be an ASCII identifier"
                )
            if kind.kind not in "biufc" or kind.itemsize > (16 if kind.kind == "c" else 8):
                raise TypeError(
                    f"field {field!r} of monoid {monoid!r} is {declared}; states are made of bool, "
                    "integers, float16 to float64, complex64 and complex128, and vectors of these"
                )
            if 0 in shape:
                raise ValueError(f"field {field!r} of monoid {monoid!r} has no element: {declared}")
            members.append(Member(field, kind.newbyteorder("="), shape))
        fields = cls(monoid, tuple(members), dtype.names is None)
        size = np.dtype(members, align=True).itemsize
        if size > STATE_BYTES:
            raise ValueError(
                f"a state of monoid {monoid!r} has {size} bytes; at most {STATE_BYTES} fit"
            )
        return fields

    @cached_property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """The dtypes of all numbers of a state, by their names in C++."""
        return {
            name + "".join(f"[{i}]" for i in index): dtype
            for name, dtype, shape in self.members
            for index in np.ndindex(shape)
        }

    @cached_property
    def vectors(self) -> bool:
        """Whether any field is a vector."""
        return any(shape for _, _, shape in self.members)

    @cached_property
    def probe(self) -> int:
        """How many states to try functions on: longer than any vector, so that axes differ."""
        return max([2, *(n + 1 for _, _, shape in self.members for n in shape)])

    def identity(self, value: Any) -> State:
        """Return the numbers of the identity as NumPy scalars."""
        if self.single:
            value = (value,)
        if not isinstance(value, tuple | list) or len(value) != len(self.members):
            names = ", ".join(name for name, _, _ in self.members)
            raise ValueError(
                f"the identity of monoid {self.monoid!r} must be a tuple of {len(self.members)}, "
                f"one number a field ({names}), got {value!r}"
            )
        return tuple(
            number
            for member, field in zip(self.members, value, strict=True)
            for number in self._numbers(member, field)
        )

    def _numbers(self, member: Member, value: Any) -> State:
        field, dtype, shape = member
        elements = np.empty(shape, object)
        try:
            array = np.array(value, object)
            # One number stands for all elements of a vector.
            if array.shape not in ((), shape):
                raise ValueError
            elements[...] = array
            numbers = tuple(map(dtype.type, elements.flat))
            pairs = zip(numbers, elements.flat, strict=True)
            fits = all(n.shape == () and (dtype.kind in "fc" or n == e) for n, e in pairs)
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            of_shape = f" of shape {shape}" if shape else ""
            raise TypeError(
                f"the identity of monoid {self.monoid!r} has {value!r} in field {field!r}, which "
                f"is no {dtype}{of_shape}"
            )
        return numbers

    def combine(self, function: Callable[[Any, Any], Any], a: State, b: State) -> State:
        """Combine states by the user's function."""
        result = function(self._show(a), self._show(b))
        return self._hold("combine", (result,) if self.single else result, a[0].shape, a[0])

    def lift(self, function: Callable[[Any], Any] | None, x: Any) -> State:
        """Turn elements into states by the user's function, or convert them without one."""
        result = x if function is None else function(x)
        if not isinstance(result, tuple) and len(self.members) == 1:
            result = (result,)
        return self._hold("lift", result, x.shape, x)

    def finalize(self, function: Callable[[Any], Any] | None, state: State) -> Any:
        """Turn states into results by the user's function, or return them without one."""
        return state[0] if function is None else function(self._show(state))

    def display(self, state: State) -> str:
        """Return the text of one state, as the user would write it."""
        shown = self._show(state)
        return repr(
            tuple(x.tolist() for x in shown) if isinstance(shown, tuple) else shown.tolist()
        )

    def _show(self, state: State) -> Any:
        """Return a state in the form that the user's functions take."""
        if not self.vectors:
            return state[0] if self.single else state
        members, start = [], 0
        for _, _, shape in self.members:
            size = math.prod(shape)
            if shape:
                field = np.stack(state[start : start + size], -1)
                members.append(field.reshape(*field.shape[:-1], *shape))
            else:
                members.append(state[start])
            start += size
        return members[0] if self.single else tuple(members)

    def _hold(self, caller: str, result: Any, shape: tuple[int, ...], like: Any) -> State:
        """Return the result of the user's function `caller` as a state; check shapes and dtypes."""
        monoid = self.monoid
        if not isinstance(result, tuple | list) or len(result) != len(self.members):
            names = ", ".join(name for name, _, _ in self.members)
            raise ValueError(
                f"{caller} of monoid {monoid!r} must return an array for each field ({names})"
            )
        state: list[Any] = []
        for (field, dtype, axes), values in zip(self.members, result, strict=True):
            expected = shape + axes
            # Functions may return one number for all elements.
            if not hasattr(values, "astype"):
                if isinstance(values, tuple | list):
                    raise TypeError(
                        f"{caller} of monoid {monoid!r} gives a {type(values).__name__} for field "
                        f"{field!r}; np.stack(..., axis=-1) makes an array of it"
                    )
                kind = np.result_type(dtype, values)
                values = np.full_like(like, values, dtype=kind, shape=expected)
            if values.shape != expected:
                its = f", and a vector has the axes {axes} behind these" if axes else ""
                raise ValueError(
                    f"{caller} of monoid {monoid!r} gives field {field!r} shape {values.shape}; "
                    f"it was given {shape}{its}"
                )
            kind = values.dtype
            if kind != dtype and not np.can_cast(kind, dtype, "same_kind"):
                raise TypeError(
                    f"{caller} of monoid {monoid!r} gives {kind} for field {field!r}, which is "
                    f"{dtype}"
                )
            values = values.astype(dtype, copy=False)
            if axes:
                state.extend(values[(..., *index)][()] for index in np.ndindex(axes))
            else:
                state.append(values)
        return tuple(state)

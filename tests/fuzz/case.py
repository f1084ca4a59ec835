"""What a case is: the call of one public function, as data that can be cut down and shown."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop.algebra.merges import cast
from dask_coop.algebra.strategies import AUTO

Array = np.ndarray[Any, Any]
Chunks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Named:
    """An option that has a name rather than a literal, such as a monoid."""

    code: str

    @property
    def value(self) -> Any:
        """Return what the code stands for."""
        from dask_coop.algebra import monoids
        from fuzz import own

        return eval(self.code, {"np": np, "dc": dc, "monoids": monoids, "own": own})


def _reversed(block: Any) -> Any:
    return block[(slice(None, None, -1),) * block.ndim].copy()[
        (slice(None, None, -1),) * block.ndim
    ]


def _strided(block: Any) -> Any:
    wide = block.repeat(2, -1)
    return wide[..., ::2]


def _fortran(block: Any) -> Any:
    return block.copy(order="F")


def _read_only(block: Any) -> Any:
    block = block.copy()
    if isinstance(block, np.ndarray):
        block.flags.writeable = False
    return block


def _bare(block: Any) -> Any:
    """Return a block as a plain array where nothing of it is masked."""
    return block if np.ma.getmaskarray(block).any() else np.ma.getdata(block)


def undeclared(block: Any) -> Any:
    """Return a block of another dtype, which becomes what it was where it is converted back.

    What takes it as it is finds other elements, or tables of another size.
    """
    kind, size = block.dtype.kind, block.dtype.itemsize
    if kind == "b":
        return block * np.int64(3)
    if kind in "iu":
        if size == 8:
            return block.astype("u8" if kind == "i" else "i8")
        return block.astype("f8") + np.where(block >= 0, 0.25, 0)
    if kind in "fc" and size < np.dtype(f"{kind}8").itemsize * (1 + (kind == "c")):
        # By less than what the narrow dtype tells apart.
        wide = cast(block, np.dtype("f8" if kind == "f" else "c16"))
        if kind == "f":
            return wide * (1 + 1e-12)
        parts = wide.data if isinstance(wide, np.ma.MaskedArray) else wide
        parts.real, parts.imag = parts.real * (1 + 1e-12), parts.imag * (1 + 1e-12)
        return wide
    if kind in "fc":
        with np.errstate(all="ignore"):
            narrow = cast(block, np.dtype("f4" if kind == "f" else "c8"))
        parts = (narrow.real, block.real), (narrow.imag, block.imag)
        same = [((a == b) | (b != b)).all() for a, b in parts]
        return narrow if all(same) else block
    return block


#: How blocks lie in memory, or that their dtype is another; and the code that makes them so.
LAYOUTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "F": (_fortran, "lambda b: b.copy(order='F')"),
    "reversed": (_reversed, "lambda b: b[::-1].copy()[::-1]"),
    "strided": (_strided, "lambda b: b.repeat(2, -1)[..., ::2]"),
    "read-only": (_read_only, "lambda b: (b := b.copy(), b.setflags(write=False))[0]"),
    "bare": (_bare, "lambda b: b if np.ma.getmaskarray(b).any() else np.ma.getdata(b)"),
    "undeclared": (undeclared, "undeclared"),
}


@dataclass(frozen=True)
class Operand:
    """An argument that is an array.

    Attributes
    ----------
    array : numpy.ndarray
    chunks : tuple of tuple of int
    axes : str
        A letter for each axis: those of one letter are cut together when a case is cut down. A
        space stands for an axis that is broadcast.
    layout : str
        "C", a key of `LAYOUTS`, or ">" for the other byte order.
    mask : numpy.ndarray, optional
        What is masked, where it is a masked array. Chunks are NumPy's then.
    """

    array: Array
    chunks: Chunks
    axes: str
    layout: str = "C"
    mask: Array | None = None

    def __post_init__(self) -> None:
        # NumPy makes scalars of arrays without axes.
        object.__setattr__(self, "array", np.asarray(self.array))

    @property
    def valid(self) -> Array:
        """What is not masked."""
        return np.ones(self.array.shape, "?") if self.mask is None else ~self.mask

    def build(self, xp: Any, arrays: Any = da) -> Any:
        """Return the Dask array, or one of the package `arrays`, with chunks of `xp`'s kind."""
        array = self.array
        if self.layout == ">" and xp is np:
            array = array.astype(array.dtype.newbyteorder(">"))
        if self.mask is not None:
            array = np.ma.array(array, mask=self.mask)
        x = arrays.from_array(array, chunks=self.chunks)
        if xp is not np:
            x = x.map_blocks(xp.asarray, dtype=x.dtype, meta=xp.zeros((0,) * x.ndim, x.dtype))
        if self.layout in LAYOUTS and array.ndim:
            x = x.map_blocks(LAYOUTS[self.layout][0], dtype=x.dtype, meta=x._meta)
        return x

    def code(self, xp: Any) -> str:
        """Return Python that builds it."""
        big = self.layout == ">" and xp is np
        array = show_array(self.array, ">" if big else "", "np" if xp is np else "cp")
        if self.mask is not None:
            array = f"np.ma.array({array}, mask={show_array(self.mask)})"
        whole = self.array.ndim == 0 or all(len(sizes) == 1 for sizes in self.chunks)
        chunks = -1 if whole else self.chunks
        code = f"da.from_array({array}, chunks={chunks}{'' if xp is np else ', asarray=False'})"
        if self.layout in LAYOUTS and self.array.ndim:
            dtype = f", dtype={self.array.dtype.str!r}" if self.layout == "undeclared" else ""
            code += f".map_blocks({LAYOUTS[self.layout][1]}{dtype})"
        return code


@dataclass(frozen=True)
class Case:
    """A call.

    Attributes
    ----------
    family, function : str
        A key of `families.FAMILIES`, and the name in dask_coop.
    inputs : tuple of Operand
        What is passed by position.
    operands : dict
        What is passed by name.
    options : dict
        Further keywords: literals, NumPy arrays and `Named`.
    together : int
        The number of lists that the inputs are passed as; with 0 each is an argument.
    compiled : bool
        Whether NumPy chunks of any size are worth compiling loops for.
    installed : bool
        Whether Dask's function of that name is called, with ours in its place.
    strategy : tuple of str, optional
        The family of strategies that the function reads, and the name that it reads.
    before : tuple
        Literals and NumPy arrays that are passed by position before the inputs.
    """

    family: str
    function: str
    inputs: tuple[Operand, ...]
    operands: dict[str, Operand] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    together: int = 0
    compiled: bool = False
    installed: bool = False
    strategy: tuple[str, str] | None = None
    before: tuple[Any, ...] = ()

    @property
    def x(self) -> Array:
        """The first array."""
        return self.inputs[0].array

    def option(self, name: str, default: Any = None) -> Any:
        """Return the value of a keyword, or its default where it is not given."""
        value = self.options.get(name, default)
        return value.value if isinstance(value, Named) else value

    def operand(self, name: str) -> Any:
        """Return the array of a keyword, or None."""
        return self.operands[name].array if name in self.operands else None

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Call the function on chunks of `xp`'s kind, and return its results as a flat tuple."""
        inputs: list[Any] = [operand.build(xp) for operand in self.inputs]
        named = {name: operand.build(xp) for name, operand in self.operands.items()}
        options = {name: self.option(name) for name in self.options}
        with dc.installed() if self.installed else nullcontext():
            function = attrgetter(self.function)(da if self.installed else dc)
            result = function(*self.before, *self._in_lists(inputs), **named, **options)
        parts = result if isinstance(result, tuple) else (result,)
        return tuple(
            itertools.chain.from_iterable(
                p if isinstance(p, list | tuple) else [p] for p in parts if p is not None
            )
        )

    def _in_lists(self, inputs: list[Any]) -> list[Any]:
        size = len(inputs) // (self.together or 1)
        return [inputs[i * size : (i + 1) * size] for i in range(self.together)] or inputs

    def setting(self, xp: Any) -> AbstractContextManager[None]:
        """Return in what the call is made and computed."""
        context: AbstractContextManager[None] = dask.config.set(self._settings)
        return context

    @property
    def _settings(self) -> dict[str, str]:
        family, name = self.strategy or ("scan", AUTO)
        return {f"coop.strategy.{family}": name}

    def code(self, xp: Any) -> str:
        """Return the call as a line of Python."""
        inputs = [operand.code(xp) for operand in self.inputs]
        arguments = [*map(show, self.before), *inputs]
        if self.together:
            arguments = [f"[{', '.join(some)}]" for some in self._in_lists(inputs)]
        arguments += [f"{name}={operand.code(xp)}" for name, operand in self.operands.items()]
        arguments += [f"{name}={show(value)}" for name, value in self.options.items()]
        line = f"dc.{self.function}({', '.join(arguments)})"
        if self.installed:
            line = f"dc.installed()(lambda: da{line[2:]})()"
        if self.compiled and xp is np:
            line = f"WORTH_COMPILING.update(dict.fromkeys(WORTH_COMPILING, 1)); {line}"
        if self.strategy is not None and self.strategy[1] != AUTO:
            line = f"dask.config.set({self._settings}); {line}"
        if ".map_blocks(undeclared" in line:
            line = f"from fuzz.case import undeclared; {line}"
        if any(isinstance(value, Named) for value in self.options.values()):
            line = f"from dask_coop import monoids; from fuzz import own; {line}"
        return line


def show(value: Any) -> str:
    """Return Python for an option."""
    match value:
        case Named():
            return value.code
        case np.ndarray():
            return show_array(value)
        case np.generic():
            return f"np.{value.dtype.name}({_number(value)})"
        case tuple():
            return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
        case list():
            return f"[{', '.join(map(show, value))}]"
        case float():
            return _number(value)
    return repr(value)


def show_array(array: Array, order: str = "", module: str = "np") -> str:
    """Return Python for an array, short where it repeats itself."""
    dtype = repr(order + array.dtype.str[1:] if order else array.dtype.str.lstrip("<|="))
    flat, n = array.ravel(), array.size
    shape = "" if array.ndim == 1 else f".reshape({array.shape})"
    if n > 8:
        same = flat.view(f"V{flat.itemsize}") if flat.dtype.kind in "fcmM" else flat
        # The least period.
        for period in (p for p in range(1, min(n // 2, 400) + 1) if n % p == 0):
            if np.array_equal(same[period:], same[:-period]):
                base = ", ".join(map(_number, flat[:period]))
                return f"{module}.tile({module}.array([{base}], {dtype}), {n // period}){shape}"
    if array.ndim == 0:
        return f"{module}.array({_number(array[()])}, {dtype})"
    return f"{module}.array([{', '.join(map(_number, flat))}], {dtype}){shape}"


def _number(value: Any) -> str:
    if isinstance(value, np.datetime64 | np.timedelta64):
        return repr(int(value.view("i8")))
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, complex | np.complexfloating):
        return f"complex({_number(value.real)}, {_number(value.imag)})"
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return repr(value.item() if isinstance(value, np.generic) else value)
    number = float(value)
    if number != number:
        return "np.nan"
    if np.isinf(number):
        return "np.inf" if number > 0 else "-np.inf"
    return repr(number)

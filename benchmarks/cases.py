"""The cases, their data, and the check that two results agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

Array = Any

DTYPES = ("float32", "float64", "int32", "int64")
DATA = ("uniform", "normal", "constant", "sorted")

#: Data for cases without a GPU: a tenth NaN, and all false.
HOST_DATA = ("holes", "zeros")

#: Up to this number of elements NumPy makes the reference on the host; above it CuPy in float64.
HOST_ELEMENTS = 1 << 22

#: The tolerance of float results, relative to the sum of magnitudes: for peers, which sum float32
#: in float32, and for this library.
TOLERANCE = {"float32": (1e-4, 1e-6), "float64": (1e-9, 1e-11)}

_INTEGERS = 1 << 20

#: Elements on the host that are compared at a time, few enough to stay in the cache.
_PIECE = 1 << 17


@dataclass(frozen=True)
class Case:
    """One line of the tables.

    Attributes
    ----------
    primitive, work : str
        The module of the case, and the row of its ``CONTENDERS``.
    dtype, data : str
        The dtype and data of the inputs; `data` is one of `DATA` or `HOST_DATA`.
    shape : tuple of int
        The shape of one input.
    axis : int, optional
        None for all elements in C order.
    bins : int
        The bins of a histogram, else 0.
    arrays : int
        The inputs of one call, each of that shape.
    written : int
        The bytes that a call must write, if more than a few.
    slots : int
        The least number of instruction slots of a call, one a lane, where these and not bytes are
        the limit; an instruction that runs at half rate counts twice.
    chunks : int
        The chunks of the Dask arrays of inputs; 0 for inputs that stay as they are.
    clustered : bool
        Whether these chunks are in the memory of a cluster before a call.
    """

    primitive: str
    work: str
    dtype: str
    shape: tuple[int, ...]
    data: str = "uniform"
    axis: int | None = None
    bins: int = 0
    arrays: int = 1
    written: int = 0
    slots: int = 0
    chunks: int = 0
    clustered: bool = False

    @property
    def size(self) -> int:
        """The elements of one input."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of one input."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The key of the inputs' values: cases with the same key have equal inputs."""
        return self.dtype, self.shape, self.data, self.arrays

    @property
    def lines(self) -> tuple[int, int, int]:
        """The shape as (outer, n, inner), in which lines of n are reduced or scanned."""
        if self.axis is None:
            return 1, self.size, 1
        before, after = self.shape[: self.axis], self.shape[self.axis + 1 :]
        return math.prod(before), self.shape[self.axis], math.prod(after)

    @property
    def limits(self) -> tuple[int, int]:
        """The outer edges of its histogram."""
        if np.dtype(self.dtype).kind == "i":
            return 0, _INTEGERS
        return (-4, 4) if self.data == "normal" else (0, 1)

    def __str__(self) -> str:
        """Return a readable name of the case."""
        shape = " x ".join(map(str, self.shape))
        if len(self.shape) == 1 and self.size & (self.size - 1) == 0:
            shape = f"2^{self.size.bit_length() - 1}"
        parts = [self.primitive, self.work, self.dtype, shape, self.data]
        parts += [f"{self.bins:,} bins"] if self.bins else []
        return " ".join(parts + ([f"{self.chunks} chunks"] if self.chunks else []))


@dataclass(frozen=True)
class Scale:
    """The sizes of the cases.

    Attributes
    ----------
    sizes : tuple of int
        Elements of the one-dimensional arrays, ascending.
    side, product : int
        Rows of the square arrays, and of the matrices that are multiplied.
    bins : tuple of int
        The bins of the histograms of the largest size.
    chunks : tuple of int
        The chunks of the Dask arrays in whole calls, beside those of dask.array.
    whole : int
        Elements of the arrays that more and more threads work on.
    """

    sizes: tuple[int, ...]
    side: int
    product: int
    bins: tuple[int, ...]
    chunks: tuple[int, ...] = ()
    whole: int = 0

    def of_sizes(self, sizes: tuple[int, ...]) -> Scale:
        """Return this scale with other sizes, and no case larger than the largest of them."""
        root = math.isqrt(sizes[-1])
        bins = tuple(n for n in self.bins if n <= sizes[-1])
        side, product = min(self.side, root), min(self.product, root)
        return replace(self, sizes=sizes, side=side, product=product, bins=bins)


_BINS = (16, 256, 2048, 16384, 49152, 65536, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
GPU = Scale(tuple(1 << n for n in range(16, 31, 2)), 16384, 8192, _BINS)
_HOST_BINS = (16, 256, 4096, 65536, 1 << 20)
HOST = Scale(tuple(1 << n for n in range(16, 25, 2)), 4096, 256, _HOST_BINS, (16, 256), 1 << 26)
QUICK = Scale((1 << 10, 1 << 14), 64, 32, (16, 2048, 65536), (4,), 1 << 14)

#: Elements of the arrays for 16 threads and more.
LARGE = 1 << 30

#: Makes the function to time; raises ImportError or AttributeError if it is missing.
Maker = Callable[[Any, Case], Callable[..., Any]]


class Primitive(Protocol):
    """The interface of a primitive's module."""

    #: By work, then by the name of the library.
    CONTENDERS: dict[str, dict[str, Maker]]

    def cases(self, scale: Scale) -> Iterator[Case]:
        """Yield the cases, those with the same inputs next to each other."""

    def reference(self, case: Case, xp: Any, *inputs: Array) -> Any:
        """Return the reference of the results, in float64 or exact."""

    def distance(self, case: Case, strict: bool, got: Any, want: Any, *inputs: Array) -> float:
        """Return the error of `got` in tolerances, in those of this library if `strict`."""


def fill(xp: Any, case: Case, seed: int) -> Array:
    """Return one input of `case`."""
    dtype, n = np.dtype(case.dtype), case.size
    integers = dtype.kind == "i"
    if case.data == "constant":
        return xp.full(case.shape, 1000 if integers else 0.5, dtype)
    if case.data == "sorted":
        ramp = xp.arange(n, dtype="f8") * ((_INTEGERS if integers else 1) / n)
        return ramp.astype(dtype).reshape(case.shape)
    if case.data == "zeros":
        return xp.zeros(case.shape, dtype)
    random = xp.random.default_rng(seed)
    if case.data == "normal":
        return random.standard_normal(n, dtype).reshape(case.shape)
    real = random.random(n, "f4" if dtype.itemsize == 4 else "f8").reshape(case.shape)
    if case.data == "holes":
        real[random.random(case.shape, "f4") < 0.1] = np.nan
    return (real * _INTEGERS).astype(dtype) if integers else real


def apart(case: Case, strict: bool, got: Any, want: Any) -> float:
    """Return the greatest difference of `got` from `want`, in tolerances: right is at most 1.

    Integers have no tolerance, and are wrapped to the dtype of `got`. Floats may differ by the
    rounding of a peer's sums, which grows with the partial sums: for data of both signs about with
    the root of the number of elements.
    """
    if got.shape != want.shape:
        return math.inf
    if isinstance(got, np.ndarray) and got.size > _PIECE:
        a, b = got.reshape(-1), want.reshape(-1)
        pieces = (slice(at, at + _PIECE) for at in range(0, got.size, _PIECE))
        # NumPy's max: Python's may lose NaN.
        return float(np.max([apart(case, strict, a[piece], b[piece]) for piece in pieces]))
    if got.dtype.kind in "iu" and want.dtype.kind in "iu":
        return 0.0 if bool((got == want.astype(got.dtype)).all()) else math.inf
    bound = abs(want).astype("f8", copy=False)
    bound += math.sqrt(case.size) if case.data == "normal" else 0.0
    bound *= TOLERANCE.get(case.dtype, TOLERANCE["float64"])[strict]
    # A variance of 0 may come out as the square of the mean's rounding error.
    bound += np.finfo("f8").eps ** 2
    return float((abs(got - want) / bound).max())

"""What a chunk backend offers, which there are, and which one works on a chunk.

A chunk backend is a module of functions of one chunk.  It is chosen inside the task, from the class
of the chunk at hand, so that a client needs no GPU, and so that some chunks of an array may be
masked and others not.  A new one is a module that fulfils `ChunkBackend` and a row in `BACKENDS`.

While a graph is built no backend is asked.  What Dask and dask_coop need there is the array class
itself: ``shape``, ``dtype``, ``ndim``, slices, ``astype``, and ``__array_function__`` with
`numpy.zeros_like`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

import numpy as np

from dask_coop.algebra.bins import BinSpec, Steps
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.merges import EXACT
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.strategies import AUTO
from dask_coop.algebra.windows import Window
from dask_coop.chunks.files import Direct
from dask_coop.chunks.masks import is_masked
from dask_coop.errors import Refused
from dask_coop.meters import counted

if TYPE_CHECKING:
    # Which calls backends itself.
    from dask_coop.chunks.distinct import Distinct

#: An array of the backend's class.
Array = Any
Side = Literal["left", "right"]


class ChunkBackend(Protocol):
    """The functions of a chunk backend, which is a module.

    A state is a tuple with a NumPy scalar or an array a field, as `MonoidRow.fields` has them.
    Fields have the shape of the chunk without the axes that are reduced, and the dtypes
    ``op.monoid.dtypes(op.element)``; where ``op.monoid.entries`` is not None, one more axis has so
    many, or as many as lines have elements.  They are NumPy arrays, or such as NumPy's ufuncs
    combine.
    """

    def lift(
        self, op: Operation, x: Array, axes: tuple[int, ...], where: Array | None = None
    ) -> State:
        """Reduce the chunk `x` over `axes` to a state, as if converted to ``op.element`` before.

        Parameters
        ----------
        op : Operation
        x : array
            Of any shape and strides, maybe without elements.
        axes : tuple of int
            Sorted and not negative.
        where : array of bool, optional
            Which elements count; it broadcasts to ``x.shape``.

        Returns
        -------
        tuple of arrays
            A state; argument indices, of a positional monoid, count from the chunk's first element.
        """

    def scan(
        self,
        op: Operation,
        x: Array,
        spec: ScanSpec,
        base: State | None = None,
        heads: Array | None = None,
    ) -> Array:
        """Return the scan of the chunk `x` along ``spec.axis``.

        Parameters
        ----------
        op : Operation
        x : array
            Of any shape and strides, maybe without elements.
        spec : ScanSpec
            The direction, and what the results include.
        base : tuple of arrays, optional
            The state of what comes before the chunk, in the shape of `x` without ``spec.axis``.
        heads : array of bool, optional
            Where the scan restarts: in the shape of `x`, or of one line for all.

        Returns
        -------
        array
            Of the backend's class, of dtype ``op.output`` and the shape of `x`; one longer along
            the axis with ``spec.initial``.
        """

    def scan_on(
        self,
        op: Operation,
        x: Array,
        spec: ScanSpec,
        base: State | None = None,
        heads: Array | None = None,
    ) -> tuple[Array, State]:
        """Return what `scan` does, and the state behind the chunk, which is the next one's base."""

    def lift_segments(self, op: Operation, x: Array, spec: ScanSpec, heads: Array) -> State:
        """Reduce what is behind the last head flag of every line of the chunk `x` to a state.

        The arguments are those of `scan`.

        Returns
        -------
        tuple of arrays
            One field more than a state of ``op``, the last one: bool, whether the line has one.
        """

    def move(self, window: Window, x: Array, halo: Array, base: State | None = None) -> Array:
        """Reduce the window that ends at each element of the chunk `x` to a statistic.

        Parameters
        ----------
        window : Window
        x : array
            Of real numbers, of any shape and strides, maybe without elements.
        halo : array
            What comes before it along the axis, of its dtype: fewer elements than a window has,
            and where the array starts with them maybe too few.
        base : tuple of arrays, optional
            What ``window.keep`` has of all that lies between these two, in the shape of `x` without
            the axis. Every window holds that, so none is shorter than `x`.

        Returns
        -------
        array
            Of the backend's class, of dtype ``window.result(x.dtype)`` and the shape of `x`.
        """

    def histogram(
        self,
        op: Operation,
        samples: Sequence[Array],
        grid: BinSpec,
        weights: Array | None,
    ) -> State:
        """Count the samples of a chunk, or sum their `weights`, by bin.

        Parameters
        ----------
        op : Operation
        samples : sequence of arrays
            The coordinates, of equal shapes; or one array that has them along its last axis.
        grid : Grid, Integers or Digits
            The bins of each coordinate, and the axes that are counted.
        weights : array or None
            In the shape of a coordinate.

        Returns
        -------
        tuple of arrays
            The table, with the axes that are not counted first and then ``grid.shape``; of
            `Integers`, as long as the largest sample asks for.  Of a reproducible sum, its digits.
        """

    def collect(self, x: Array, digits: Digits) -> Array:
        """Return the samples of the chunk `x` that `digits` counts, or all if they are not few.

        They come in any order.
        """

    def digitize(self, x: Array, steps: Steps) -> Array:
        """Return the numbers of the bins of samples: int64, in the shape of `x`."""

    def compress(self, x: Array, mask: Array) -> Array:
        """Return the elements of `x` that a mask of its shape holds for: one axis, in C order."""

    def flatnonzero(self, x: Array) -> Array:
        """Return where in C order `x` has elements that are not zero, as int64; NaN is not."""

    def merge_distinct(self, monoid: Distinct, states: Sequence[State]) -> State:
        """Return the state of several parts, whose states `lift` has made, or this function.

        Each has at least one part's values, sorted, and arrays as long for what else `monoid` asks.
        """

    def positions(self, values: Array, x: Array) -> Array:
        """Return where in the sorted distinct `values` each element of `x` is.

        All are there, and NaN are one value. What comes back is int64, in the shape of `x`.
        """

    def isin(self, x: Array, values: Array) -> Array:
        """Return whether elements are among sorted distinct `values` of their dtype: bool."""

    def searchsorted(self, a: Array, v: Array, side: Side) -> Array:
        """Return how many of the sorted elements `a` are before each of `v`: int64.

        As NumPy's, with `side` "right" also those that are equal.
        """

    def transpose(self, x: Array, axes: Sequence[int] | None = None, strategy: str = AUTO) -> Array:
        """Return a copy of the chunk `x` in C order, with its axes in the order `axes`.

        By default they are reversed. `strategy` is for backends that have several.
        """

    def sort(self, x: Array, axis: int, stable: bool) -> Array:
        """Return the chunk `x` with its elements in rising order along `axis`, NaN last."""

    def argsort(self, x: Array, axis: int, stable: bool) -> Array:
        """Return the indices along `axis` that sort the chunk `x`: int64, of its shape.

        Those of equal elements are in their order if it is `stable`.
        """

    def matmul(
        self, a: Array, b: Array, semiring: str = "plus_times", strategy: str = AUTO
    ) -> Array:
        """Return the product of two chunks over the semiring of that name, shaped as np.matmul's.

        Its dtype is ``SEMIRINGS[semiring].dtype(a.dtype, b.dtype)``. `strategy` is for backends
        that have several.
        """

    def order_statistics(
        self, x: Array, axes: tuple[int, ...], ranks: np.ndarray[Any, Any]
    ) -> tuple[Array, Array]:
        """Return elements by their ranks among those of their lines that are not NaN or NaT.

        Parameters
        ----------
        x : array
            Of bool, integers, floats or dates, and of any shape and strides.
        axes : tuple of int
            Sorted and not negative. A line is all that lies along these axes.
        ranks : numpy.ndarray of int64
            Of shape ``(length + 1, m)``: by how many elements of a line are not NaN, the ranks that
            are wanted of it, in any order; one too large stands for the largest. It may be one row
            broadcast to that shape, which is then never made.

        Returns
        -------
        values : array
            Of shape ``(m, *kept)`` and the dtype of `x`; NaN or NaT where all of the line is.
        counts : array of int64
            How many elements of each line are not NaN.
        """

    def lift_groups(self, ops: Sequence[Operation], x: Array, codes: Array, n: int) -> list[State]:
        """Reduce the elements of each group of the chunk `x` to states, by several operations.

        Parameters
        ----------
        ops : sequence of Operation
        x : array
            Of shape ``(*kept, *labels)`` and any strides, maybe without elements. It is taken as if
            converted to each operation's ``element`` before; with ``skipna`` NaN is left out.
        codes : array of int32 or int64
            Which group an element is of, 0 to ``n - 1``, or -1 for those that are left out: of the
            shape of the last axes of `x`, at least one.
        n : int
            How many groups there are.

        Returns
        -------
        list of tuples of arrays
            For each operation a state, with fields of shape ``(*kept, n)`` and dtypes
            ``op.monoid.dtypes(op.element)``; the identity where a group has no element. Indices, of
            a positional monoid, count in C order of the label axes from the chunk's first element.
        """

    def to_numpy(
        self, x: Array, nbytes: int | None = None, out: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """Return `x` as a NumPy array, of its shape and dtype, or as `out`, which it is put into.

        A backend of another memory may stage copies in `nbytes` of the host's; by default in as
        much as it takes to be fast.
        """

    def from_numpy(
        self, x: np.ndarray[Any, Any], nbytes: int | None = None, direct: Direct = "auto"
    ) -> Array:
        """Return a NumPy array as one of the backend's class, on the current device.

        `nbytes` is as for `to_numpy`. What is a map of a file may be read from there instead, past
        the page cache if `direct` says so (files.py).
        """

    # What follows is for several chunks at a time. Backends that gain nothing by it take these
    # functions from one_by_one.py.

    def lift_all(self, op: Operation, xs: Sequence[Array]) -> State | None:
        """Reduce each of the chunks `xs`; None if they have to be taken one by one.

        Returns
        -------
        tuple of numpy.ndarray or None
            The states, along the first axis of each field.
        """

    def histogram_all(self, op: Operation, xs: Sequence[Array], grid: Any) -> State | None:
        """Count the samples of the chunks `xs` into one table; None if they go one by one."""

    def upsweep(
        self, op: Operation, spec: ScanSpec, xs: Sequence[Array]
    ) -> tuple[State, bytes] | None:
        """Reduce each of the 1-d chunks `xs` for a scan; None if they go one by one.

        Returns
        -------
        state : tuple of numpy.ndarray
            The states, along the first axis of each field.
        memo : bytes
            Not empty: what `downsweep` is to be given with the same chunks.
        """

    def downsweep(
        self,
        op: Operation,
        spec: ScanSpec,
        xs: Sequence[Array],
        bases: Sequence[State | None],
        memo: bytes,
    ) -> list[Array]:
        """Scan the chunks of an upsweep from their bases, None at the start of the array.

        This does not wait for the results; `synchronize` does.
        """

    def synchronize(self, xs: Sequence[Array]) -> None:
        """Wait for all that this process has begun on the devices of the chunks `xs`."""


class BackendRow(NamedTuple):
    """A chunk backend.

    Attributes
    ----------
    kind : str
        What `kind` says of its arrays.
    classes : tuple of str
        The classes of its arrays, with the names of their modules. Subclasses are not among them.
    module : str
        Its functions, which fulfil `ChunkBackend`.
    """

    kind: str
    classes: tuple[str, ...]
    module: str


def class_name(of: type) -> str:
    """Return the name of a class, with that of its module."""
    return f"{of.__module__}.{of.__name__}"


#: All chunk backends by their names. That of each kind has the kind's name. Naming CuPy's class
#: instead of importing it keeps CPU processes free of CuPy.
BACKENDS = {
    "numpy": BackendRow(
        "numpy",
        tuple(map(class_name, (np.ndarray, np.memmap))),
        "dask_coop.chunks.numpy.backend",
    ),
    "masked": BackendRow(
        "numpy",
        tuple(map(class_name, (np.ma.MaskedArray, type(np.ma.masked)))),
        "dask_coop.chunks.masked",
    ),
    "cupy": BackendRow(
        "cupy",
        ("cupy.ndarray", "cupy._core.core.ndarray"),
        "dask_coop.chunks.cupy.backend",
    ),
}

EXACT["cupy"] = partial(import_module, "dask_coop.chunks.cupy.exact")


def kind(x: Any, name: str = "an array") -> str:
    """Return the kind of an array, "numpy" or "cupy", which messages call `name`.

    Raises
    ------
    Refused
        If `x` is of another type; subclasses count as other types, for they carry meaning (a unit)
        that plain arrays would lose. Only that of a mask is known here.
    """
    return _row(x, name).kind


def backend_of(*blocks: Any) -> ChunkBackend:
    """Return the backend that works on blocks of those types, which belong together.

    Raises
    ------
    Refused
        If there is none for the first of them.
    """
    # A masked block decides for all.
    return _load(_row(next(filter(is_masked, blocks), blocks[0])).module)


def asarray(x: Any, to: str, nbytes: int | None = None, direct: Direct = "auto") -> Any:
    """Return `x` as an array of the kind `to`, on the current device.

    Copies between memories are staged in up to `nbytes` of the host's; `direct` tells whether maps
    of files are read past the page cache (files.py).

    Raises
    ------
    RuntimeError
        If this process cannot make arrays of that kind.
    """
    row = _row(x)
    if row.kind == to:
        return x
    on_host = _load(row.module).to_numpy(x, nbytes)
    try:
        target = _load(BACKENDS[to].module)
    except ImportError as error:
        message = f"a chunk is to become an array of {to}, which does not import here: {error}"
        raise RuntimeError(message) from error
    return target.from_numpy(on_host, nbytes, direct)


def put_into(out: np.ndarray[Any, Any], x: Any, nbytes: int | None = None) -> None:
    """Put `x` into a NumPy array of its shape; copies are staged as those of `asarray`."""
    backend_of(x).to_numpy(x, nbytes, out)


def can_move(x: Any, kind: str) -> bool:
    """Tell whether `x` is a plain array of the kind `kind`, and can become one of any other."""
    of: Any = type(x)
    return class_name(of) in BACKENDS[kind].classes and is_common(x.dtype)


def is_common(dtype: np.dtype[Any]) -> bool:
    """Tell whether every kind of array has elements of that dtype."""
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _row(x: Any, name: str = "an array") -> BackendRow:
    of: Any = type(x)  # to mypy, type[Any] has no hash
    try:
        return _find(of)
    except KeyError:
        raise Refused(
            f"{name} has chunks of type {of.__module__}.{of.__name__}; dask_coop takes "
            "NumPy and CuPy arrays; convert them, such as with .map_blocks(numpy.asarray)"
        ) from None


@cache
def _find(of: type) -> BackendRow:
    """Return the backend for the arrays of a class; a refusal is not kept."""
    # NumPy's reductions over all axes leave scalars.
    name = class_name(np.ndarray if issubclass(of, np.generic) else of)
    return {name: row for row in BACKENDS.values() for name in row.classes}[name]


@cache
def _load(module: str) -> ChunkBackend:
    functions = import_module(module)
    names = [name for name in vars(ChunkBackend) if hasattr(functions, name) and name[0] != "_"]
    return cast(ChunkBackend, counted(functions, names, getattr(functions, "RANGES", None)))

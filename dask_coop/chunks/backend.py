"""The functions of a chunk backend, the table of backends, and the choice of one for a chunk.

A chunk backend is a module of functions of one chunk.  A task chooses it from the class of its
chunk, so that a client needs no GPU, and some chunks of an array may be masked and others not.  A
new backend is a module that fulfils `ChunkBackend` and a row in `BACKENDS`.

Building a graph uses no backend. Dask and dask_coop then need only the array class itself:
``shape``, ``dtype``, ``ndim``, slices, ``astype``, and ``__array_function__`` with
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
from dask_coop.algebra.filters import Filter
from dask_coop.algebra.merges import EXACT
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.strategies import AUTO
from dask_coop.algebra.windows import Window
from dask_coop.chunks.files import Direct, map_of
from dask_coop.chunks.masks import is_masked
from dask_coop.errors import Refused
from dask_coop.files.recognised import can_lend as can_lend
from dask_coop.files.recognised import lend as lend
from dask_coop.files.recognised import only_reads as only_reads
from dask_coop.files.stored import onto
from dask_coop.meters import counted

if TYPE_CHECKING:
    # For typing only, because these import this module.
    from dask_coop.chunks.distinct import Distinct
    from dask_coop.chunks.labels import Coder

#: An array of the backend's class.
Array = Any
Side = Literal["left", "right"]


class ChunkBackend(Protocol):
    """The functions of a chunk backend, which is a module.

    A state is a tuple with a NumPy scalar or an array for each of `MonoidRow.fields`. Fields have
    the shape of the chunk without the reduced axes, and the dtypes
    ``op.monoid.dtypes(op.element)``. If ``op.monoid.entries`` is not None, they have one more axis,
    with at most so many entries. Fields are NumPy arrays, or arrays that NumPy's ufuncs accept.
    """

    def lift(
        self, op: Operation, x: Array, axes: tuple[int, ...], where: Array | None = None
    ) -> State:
        """Reduce the chunk `x`, converted to ``op.element``, over `axes` to a state.

        Parameters
        ----------
        op : Operation
        x : array
            Any shape and strides; may be empty.
        axes : tuple of int
            Sorted and not negative.
        where : array of bool, optional
            The mask of elements that count; it broadcasts to ``x.shape``.

        Returns
        -------
        tuple of arrays
            A state; indices of a positional monoid count from the chunk's first element.
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
            Any shape and strides; may be empty.
        spec : ScanSpec
            The direction, and the elements that results include.
        base : tuple of arrays, optional
            The state before the chunk, in the shape of `x` without ``spec.axis``.
        heads : array of bool, optional
            Flags of the elements where the scan restarts, in the shape of `x`, or of one line for
            all lines.

        Returns
        -------
        array
            An array of the backend, with dtype ``op.output`` and the shape of `x`; with
            ``spec.initial`` one longer along the axis.
        """

    def scan_on(
        self,
        op: Operation,
        x: Array,
        spec: ScanSpec,
        base: State | None = None,
        heads: Array | None = None,
    ) -> tuple[Array, State]:
        """Return the result of `scan`, and the state after the chunk, the next one's base."""

    def lift_segments(self, op: Operation, x: Array, spec: ScanSpec, heads: Array) -> State:
        """Reduce the elements after the last head flag of each line of `x` to a state.

        The arguments are those of `scan`.

        Returns
        -------
        tuple of arrays
            A state of ``op`` and one more field: bool, whether the line has a head flag.
        """

    def move(self, window: Window, x: Array, halo: Array, base: State | None = None) -> Array:
        """Return a statistic of the window that ends at each element of the chunk `x`.

        Parameters
        ----------
        window : Window
        x : array
            Real numbers, of any shape and strides; may be empty.
        halo : array
            Earlier elements along the axis, of the same dtype: one less than a window has, or fewer
            at the start of the array.
        base : tuple of arrays, optional
            The state, from ``window.keep``, of all elements between `halo` and `x`, in the shape of
            `x` without the axis. All windows include them, so none is shorter than `x`.

        Returns
        -------
        array
            An array of the backend, with dtype ``window.result(x.dtype)`` and the shape of `x`.
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
            The coordinates, of equal shapes; or one array with the coordinates along its last axis.
        grid : Grid, Integers or Digits
            The bins of each coordinate, and the axes to count over.
        weights : array or None
            In the shape of a coordinate.

        Returns
        -------
        tuple of arrays
            The table: the other axes, then ``grid.shape``. For `Integers` it is long enough for the
            largest sample.  A reproducible sum has tables of digits.
        """

    def collect(self, x: Array, digits: Digits) -> Array:
        """Return the samples of the chunk `x` that `digits` counts, or `x` if these are many.

        They come in any order.
        """

    def digitize(self, x: Array, steps: Steps, rows: Array | None = None) -> Array:
        """Return the bin number of each sample: int64, in the shape of `x`.

        With `rows`, of a contiguous array that may be overwritten, it is that in a flat table of
        which each row has two numbers more than bins.
        """

    def compress(self, x: Array, mask: Array) -> Array:
        """Return the elements of `x` selected by a mask of its shape, on one axis in C order."""

    def flatnonzero(self, x: Array) -> Array:
        """Return the indices in C order, int64, of the nonzero elements of `x`; NaN is nonzero."""

    def merge_distinct(self, monoid: Distinct, states: Sequence[State]) -> State:
        """Return the merged state of several states of distinct values.

        Each state has at least one sorted value, and arrays of the same length for the other fields
        of `monoid`.
        """

    def positions(self, values: Array, x: Array) -> Array:
        """Return the index of each element of `x` in the sorted distinct `values`.

        All elements are there, and NaN are one value. The result is int64, in the shape of `x`.
        """

    def isin(self, x: Array, values: Array) -> Array:
        """Return whether elements are among sorted distinct `values` of their dtype: bool."""

    def searchsorted(self, a: Array, v: Array, side: Side) -> Array:
        """Return how many of the sorted elements `a` precede each of `v`: int64.

        As in NumPy, `side` "right" includes equal elements.
        """

    def transpose(self, x: Array, axes: Sequence[int] | None = None, strategy: str = AUTO) -> Array:
        """Return a copy of the chunk `x` in C order, with its axes in the order `axes`.

        By default the axes are reversed.
        """

    def sort(self, x: Array, axis: int, stable: bool) -> Array:
        """Return the chunk `x` sorted in ascending order along `axis`, NaN last."""

    def argsort(self, x: Array, axis: int, stable: bool) -> Array:
        """Return the indices along `axis` that sort the chunk `x`: int64, of its shape.

        A `stable` sort keeps equal elements in their order.
        """

    def merge_sorted(self, xs: Sequence[Array], stable: bool) -> Array:
        """Return the elements of several sorted arrays of one axis, sorted."""

    def label(self, x: Array, structure: np.ndarray[Any, Any]) -> Array:
        """Return the labels of connected true elements of `x`: int32, from 1 on, 0 for the others.

        Parameters
        ----------
        x : array of bool
            Of any shape and strides; not empty.
        structure : numpy.ndarray of bool
            The neighbours that connect, of length 3 along each axis, and symmetric.
        """

    def filter_lines(
        self, of: Filter, x: Array, delays: np.ndarray[Any, Any] | None = None
    ) -> tuple[Array, np.ndarray[Any, Any]]:
        """Return the filtered lines of `x`, in ``of.dtype``, and the delays behind them.

        Parameters
        ----------
        of : Filter
        x : array
            Of any shape and strides; may be empty.
        delays : numpy.ndarray, optional
            Those before `x`, of float64 or complex128, by default zeros: all sections' along the
            first axis, and the other axes of `x`.
        """

    def matmul(
        self, a: Array, b: Array, semiring: str = "plus_times", strategy: str = AUTO
    ) -> Array:
        """Return the product of two chunks over a semiring, in the shape of np.matmul's result.

        Its dtype is ``SEMIRINGS[semiring].dtype(a.dtype, b.dtype)``.
        """

    def multiply_deviations(self, a: Array, b: Array) -> tuple[Array, ...] | None:
        """Return the sums of products of deviations of the rows of `a` with those of `b`.

        Returns
        -------
        tuple of arrays or None
            The numbers that were subtracted from the rows of `a`, about their means, and the sums
            of the differences; both for `b`; and the products, in float64. None if CuPy's or
            NumPy's functions serve better.
        """

    def order_statistics(
        self,
        x: Array,
        axes: tuple[int, ...],
        ranks: np.ndarray[Any, Any],
        index: Array | None = None,
    ) -> tuple[Array, Array]:
        """Return elements by rank among those of their lines that are not NaN or NaT.

        Parameters
        ----------
        x : array
            Bool, integers, floats or dates, of any shape and strides.
        axes : tuple of int
            Sorted and not negative. A line consists of all elements along these axes.
        ranks : numpy.ndarray of int64
            The wanted ranks, in any order, in the row of the number of elements that are not NaN:
            of shape ``(length + 1, m)``. A rank that is too large means the largest element. A row
            broadcast to that shape is never copied to it.
        index : array of int64, optional
            Positions along the last axis of `x`, of shape (groups, length), NumPy's or the
            backend's. The lines are then those of ``x[..., index]``, along its last axis.

        Returns
        -------
        values : array
            Of shape ``(m, *kept)`` and the dtype of `x`; NaN or NaT if the whole line is.
        counts : array of int64
            The number of elements of each line that are not NaN.
        """

    def codes(self, coder: Coder, labels: Sequence[Array]) -> tuple[Array, int]:
        """Return the codes of elements, from labels that broadcast to each other.

        Returns
        -------
        codes : array of int32 or int64
            A number that is no group's leaves an element out.
        first : int
            The code of the first group: few numbers compared to those of groups are before it.
        """

    def lift_groups(self, ops: Sequence[Operation], x: Array, codes: Array, n: int) -> list[State]:
        """Reduce the elements of each group of the chunk `x` to states, by several operations.

        Parameters
        ----------
        ops : sequence of Operation
        x : array
            Of shape ``(*kept, *labels)`` and any strides; may be empty. Elements are converted to
            each operation's ``element``; ``skipna`` leaves NaN out.
        codes : array of int32 or int64
            The group of each element, 0 to ``n - 1``, or -1 to leave it out, or what else `codes`
            returns: in the shape of the last axes of `x`, at least one.
        n : int
            The number of groups.

        Returns
        -------
        list of tuples of arrays
            A state for each operation, with fields of shape ``(*kept, n)`` and dtypes
            ``op.monoid.dtypes(op.element)``; the identity for groups without elements. Indices of
            a positional monoid count in C order of the label axes from the chunk's first element.
        """

    def to_numpy(
        self, x: Array, nbytes: int | None = None, out: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """Return `x` as a NumPy array of its shape and dtype, or copied into `out`.

        A backend with its own memory may stage copies in `nbytes` of host memory; by default in as
        much as is fast.
        """

    def from_numpy(
        self, x: np.ndarray[Any, Any], nbytes: int | None = None, direct: Direct = "auto"
    ) -> Array:
        """Return a NumPy array as one of the backend, on the current device.

        `nbytes` is as for `to_numpy`. A memory-mapped file may be read directly instead, past the
        page cache if `direct` says so (files.py).
        """

    # Functions of several chunks at a time. Backends that gain nothing by them take these functions
    # from one_by_one.py.

    def lift_all(self, op: Operation, xs: Sequence[Array]) -> State | None:
        """Reduce each of the chunks `xs`; None if they must be reduced one by one.

        Returns
        -------
        tuple of numpy.ndarray or None
            The states, along the first axis of each field.
        """

    def histogram_all(self, op: Operation, xs: Sequence[Array], grid: Any) -> State | None:
        """Count the samples of the chunks `xs` into one table; None if one by one."""

    def upsweep(
        self, op: Operation, spec: ScanSpec, xs: Sequence[Array]
    ) -> tuple[State, bytes] | None:
        """Reduce each of the 1-d chunks `xs` for a scan; None if one by one.

        Returns
        -------
        state : tuple of numpy.ndarray
            The states, along the first axis of each field.
        memo : bytes
            Not empty; an argument of `downsweep` with the same chunks.
        """

    def downsweep(
        self,
        op: Operation,
        spec: ScanSpec,
        xs: Sequence[Array],
        bases: Sequence[State | None],
        memo: bytes,
    ) -> list[Array]:
        """Scan the chunks of an upsweep from their bases, None at the array's start.

        This does not wait for the results; `synchronize` does.
        """

    def most_joined(self, x: Array, ordered: bool) -> int:
        """Return the most bytes of chunks that are worth joining where the chunk `x` lies.

        With `ordered`, their elements will be sorted, for which chunks must be read twice.
        """

    def join(self, blocks: Sequence[Array], grid: tuple[int, ...]) -> Array:
        """Return the array of `blocks` in C order, of which there are `grid` along each axis."""

    def synchronize(self, xs: Sequence[Array]) -> None:
        """Wait for all work of this process on the devices of the chunks `xs`."""


class BackendRow(NamedTuple):
    """A chunk backend.

    Attributes
    ----------
    kind : str
        The value of `kind` for its arrays.
    classes : tuple of str
        The classes of its arrays, with the names of their modules, without subclasses.
    module : str
        The module that fulfils `ChunkBackend`.
    """

    kind: str
    classes: tuple[str, ...]
    module: str


def class_name(of: type) -> str:
    """Return the name of a class, with its module's name."""
    return f"{of.__module__}.{of.__name__}"


#: All chunk backends by name; the plain backend of a kind has the kind's name. Naming CuPy's class
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
    """Return the kind of an array, "numpy" or "cupy". Messages call the array `name`.

    Raises
    ------
    Refused
        If `x` is of another type. Subclasses count as other types, because they carry meaning (a
        unit) that plain arrays would lose; masked arrays are the exception.
    """
    return _row(x, name).kind


def backend_of(*blocks: Any) -> ChunkBackend:
    """Return the backend that works on blocks of these types, which belong together.

    Raises
    ------
    Refused
        If the first of them has no backend.
    """
    # One masked block makes all of them masked.
    return _load(_row(next(filter(is_masked, blocks), blocks[0])).module)


def asarray(x: Any, to: str, nbytes: int | None = None, direct: Direct = "auto") -> Any:
    """Return `x` as an array of the kind `to`, on the current device.

    Copies between memories are staged in at most `nbytes` of host memory; `direct` tells whether
    memory-mapped files are read past the page cache (files.py).

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
        message = f"cannot convert a chunk to an array of {to}, which does not import here: {error}"
        raise RuntimeError(message) from error
    return target.from_numpy(on_host, nbytes, direct)


def keeper(kind: str) -> tuple[int | None, int]:
    """Return the device that new arrays of a kind are on, and its bytes of memory.

    The device is None if such arrays cannot be kept for other tasks.
    """
    try:
        functions = import_module(BACKENDS[kind].module)
    except ImportError:
        return None, 0
    device: tuple[int | None, int] = (
        functions.keeper() if hasattr(functions, "keeper") else (None, 0)
    )
    return device


def read_onto(kind: str, source: Any, index: Any) -> Any:
    """Return elements of an array that is read from files, of a kind if it can be read as such.

    The others come as the array gives them. None if it does more than to read.
    """
    if not only_reads(source):
        return None
    try:
        functions = import_module(BACKENDS[kind].module)
    except ImportError:
        # The copy that follows says so.
        return None
    reader = functions.reader() if hasattr(functions, "reader") else None
    if reader is None:
        return None
    with onto(reader):
        read = source[index]
        return read.get_duck_array() if hasattr(read, "get_duck_array") else read


def empty_on_host(kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return a new NumPy array for chunks of a kind, which may reuse memory of dropped results."""
    functions = import_module(BACKENDS[kind].module)
    return getattr(functions, "empty_on_host", np.empty)(shape, dtype)


def put_into(out: np.ndarray[Any, Any], x: Any, nbytes: int | None = None) -> None:
    """Copy `x` into a NumPy array of its shape; copies are staged as in `asarray`."""
    backend_of(x).to_numpy(x, nbytes, out)


def is_mapped(x: Any) -> bool:
    """Return whether `x` is the memory of a mapped file."""
    return isinstance(x, np.ndarray) and map_of(x) is not None


def can_move(x: Any, kind: str) -> bool:
    """Return whether `x` is a plain array of `kind` that can become one of any other kind."""
    cls: Any = type(x)
    return class_name(cls) in BACKENDS[kind].classes and is_common(x.dtype)


def is_common(dtype: np.dtype[Any]) -> bool:
    """Return whether every kind of array supports a dtype."""
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _row(x: Any, name: str = "an array") -> BackendRow:
    cls: Any = type(x)  # to mypy, type[Any] has no hash
    try:
        return _find(cls)
    except KeyError:
        raise Refused(
            f"{name} has chunks of type {cls.__module__}.{cls.__name__}; dask_coop takes "
            "NumPy and CuPy arrays; convert them, such as with .map_blocks(numpy.asarray)"
        ) from None


@cache
def _find(of: type) -> BackendRow:
    """Return the backend for the arrays of a class; errors are not cached."""
    # NumPy's reductions over all axes leave scalars.
    name = class_name(np.ndarray if issubclass(of, np.generic) else of)
    return {name: row for row in BACKENDS.values() for name in row.classes}[name]


@cache
def _load(module: str) -> ChunkBackend:
    functions = import_module(module)
    names = [name for name in vars(ChunkBackend) if hasattr(functions, name) and name[0] != "_"]
    # Graphs call it while they are built, and it changes no chunk, so it is not counted.
    names.remove("most_joined")
    backend = counted(functions, names, getattr(functions, "RANGES", None))
    backend.most_joined = lambda x, ordered: functions.most_joined(x, ordered)
    return cast(ChunkBackend, backend)

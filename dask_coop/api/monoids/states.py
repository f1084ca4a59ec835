"""States of reductions that are kept, and go on with more elements.

A function that reads an array once takes one step across its chunks, and makes its result of the
last state. A runner notes that step, and later answers it by states that were kept. So functions
need no code for this::

    function(x)      --step--> the step alone, whose graph makes a state
    function(zeros)  --step--> states that were kept --> result

A file has the call that a state belongs to, and the arrays of its fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.wrap import zeros
from dask.base import is_dask_collection
from dask.delayed import Delayed

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.api import extrema, moments, order, sums
from dask_coop.api.arguments import SplitEvery
from dask_coop.api.call.public import strict
from dask_coop.api.histograms.histogram import histogram
from dask_coop.api.ranks import approx_nunique
from dask_coop.errors import Refused
from dask_coop.graph import executor
from dask_coop.graph import reduce as graph_reduce

#: The functions that read an array once, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(sums.sum, sums.nansum, sums.prod, sums.nanprod),
        *(sums.any, sums.all, sums.count_nonzero),
        *(extrema.min, extrema.nanmin, extrema.max, extrema.nanmax, extrema.ptp),
        *(moments.mean, moments.nanmean, moments.var, moments.nanvar),
        *(moments.std, moments.nanstd, moments.moment, moments.skew, moments.kurtosis),
        *(moments.describe, histogram, approx_nunique),
        *(order.quantile, order.nanquantile),
    )
}

#: The version of the files.
_VERSION = 1

#: The arguments that only matter once the last state is there.
_LATE = {"ddof", "bias", "fisher", "density", "q"}


class ReductionState:
    """The last state of a reduction, of which its result is made.

    :func:`reduce` returns one for ``return_state=True``, and :func:`combine` makes one of several.

    Attributes
    ----------
    function : str
        The name of the reduction.
    options : dict
        Its other arguments.
    dtype : numpy.dtype
        The dtype of the elements.
    shape : tuple of int
        The shape of the elements, with 1 along the reduced axes.
    fields : tuple of numpy.ndarray
        The fields of the state.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> yesterday = dc.reduce(da.arange(4, chunks=2), "mean", return_state=True).compute()
    >>> today = dc.reduce(da.arange(4, 9, chunks=2), "mean", return_state=True).compute()
    >>> float(dc.combine([yesterday, today]).result())
    4.0
    """

    def __init__(
        self,
        function: str,
        options: dict[str, Any],
        dtype: Any,
        shape: Sequence[int],
        fields: Sequence[Any],
    ) -> None:
        self.function: str = function
        self.options: dict[str, Any] = options
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.shape: tuple[int, ...] = tuple(shape)
        self.fields: tuple[Any, ...] = tuple(fields)

    def result(self, **options: Any) -> Any:
        """Return the result of the reduction, as NumPy's arrays.

        Parameters
        ----------
        **options
            Arguments to replace: `ddof`, `bias`, `fisher`, `density` and `q`, which only matter
            here.

        Raises
        ------
        TypeError
            If the state depends on an argument.
        """
        if wrong := options.keys() - _LATE:
            raise TypeError(
                f"result takes {', '.join(sorted(_LATE))}; the state is another with another "
                f"{min(wrong)}"
            )
        return _replayed(self, [self], options).result

    def save(self, path: Any) -> None:
        """Write the state to a ``.npz`` file of NumPy, which holds no pickles.

        Parameters
        ----------
        path : str or path
        """
        call = {"function": self.function, "options": self.options, "dtype": self.dtype.str}
        header = _written({"version": _VERSION, "shape": self.shape, **call})
        fields = {f"field{i}": field for i, field in enumerate(self.fields)}
        with Path(path).open("wb") as file:
            np.savez(file, state=np.array(header), **fields)

    @classmethod
    def load(cls, path: Any) -> ReductionState:
        """Read a state that `save` wrote.

        Parameters
        ----------
        path : str or path

        Raises
        ------
        ValueError
            If the file holds no state, or one of another version.
        """
        with Path(path).open("rb") as file:
            try:
                with np.load(file, allow_pickle=False) as stored:
                    header = json.loads(str(stored["state"]), object_hook=_read)
                    version, function = header.pop("version"), header["function"]
                    fields = [stored[f"field{i}"] for i in range(len(stored.files) - 1)]
                    state = cls(**header, fields=fields)
            except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError) as error:
                raise ValueError(f"{path} holds no state of a reduction: {error}") from error
        if version != _VERSION or function not in FUNCTIONS:
            raise ValueError(
                f"{path} holds a state of {function} in version {version}; this release of "
                f"dask_coop reads version {_VERSION}"
            )
        return state

    def __repr__(self) -> str:
        """Return the call that it belongs to."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"<ReductionState of {self.function}({self.dtype}{options}), shape {self.shape}>"


def lifted(
    name: str, x: da.Array, options: dict[str, Any], keepdims: bool, split_every: SplitEvery
) -> Any:
    """Return the state of a reduction by its name: lazily, or at once where a runner works so."""
    if name not in FUNCTIONS:
        raise ValueError(f"there are no states of {name}; there are of {', '.join(FUNCTIONS)}")
    chunks.refuse_masked("reduce with return_state=True", x._meta)
    if x.dtype.kind in "mM" and name != "describe":
        raise Refused(f"{name} of dtype {x.dtype} has no state; describe has one, with the mean")
    options |= {"keepdims": True} if keepdims else {}
    if lazy := [key for key, value in options.items() if is_dask_collection(value)]:
        raise TypeError(f"{name} has a state if {lazy[0]} is known, and not lazy")
    try:
        options = json.loads(_written(options), object_hook=_read)
    except TypeError as error:
        raise TypeError(f"{name} has a state for arguments that can be stored: {error}") from None
    noted: Any = _Noted()
    with executor.running(noted):
        strict(FUNCTIONS[name])(x, **options)
    if len(noted.steps) != 1:
        raise Refused(
            f"{name} with these arguments takes {len(noted.steps)} reads of the array, or values "
            "besides it, and has no state"
        )
    ((op, arrays, axes, grid),) = noted.steps
    if op.monoid.positional:
        raise Refused(f"{name} of dtype {x.dtype} has no state: its places are those of one array")
    make = partial(
        _made, name, options, x.dtype, [d for d in range(x.ndim) if d not in axes], x.ndim
    )
    return graph_reduce.state(op, arrays, axes, f"{name}-kept", make, grid, split_every)


def combine(states: Sequence[Any]) -> Any:
    """Combine the states of a reduction into that of all their elements.

    Parameters
    ----------
    states : sequence of ReductionState or Delayed
        In the order of their elements.

    Returns
    -------
    ReductionState or Delayed
        Lazy if a state is.

    Raises
    ------
    TypeError, ValueError
        If there is no state, or they differ in the reduction, its arguments, or the dtype or shape
        of elements.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> days = [da.ones(4, chunks=2), da.zeros(2)]
    >>> states = [dc.reduce(x, "std", return_state=True) for x in days]
    >>> float(dc.combine(states).compute().result(ddof=1).round(3))
    0.516
    """
    states = list(states)
    if any(isinstance(state, Delayed) for state in states):
        return graph_reduce.derive("combine", _combined, states)
    return _combined(states)


# Inside the task.


def _made(
    name: str, options: dict[str, Any], dtype: Any, kept: list[int], ndim: int, fields: State
) -> ReductionState:
    lengths = dict(zip(kept, fields[0].shape, strict=False))
    return ReductionState(name, options, dtype, [lengths.get(d, 1) for d in range(ndim)], fields)


def _combined(states: list[Any]) -> ReductionState:
    if not states:
        raise ValueError("combine takes one state at least")
    for state in states:
        if not isinstance(state, ReductionState):
            raise TypeError(f"combine takes states, got {type(state).__name__}")
    first = states[0]
    for state in states[1:]:
        for what in ("function", "dtype", "shape", "options"):
            a, b = getattr(first, what), getattr(state, what)
            if (_written(a) != _written(b)) if what == "options" else (a != b):
                raise ValueError(f"states of unlike {what} do not combine: {a} and {b}")
    (op, *_) = _replayed(first, states, {}).step
    fields = op.combine([state.fields for state in states])
    return ReductionState(first.function, first.options, first.dtype, first.shape, fields)


class _Replay(NamedTuple):
    step: tuple[Any, ...]
    result: Any


def _replayed(call: ReductionState, states: list[Any], options: dict[str, Any]) -> _Replay:
    """Call the function of a state once more, and answer its step by the states."""
    noted: Any = _Noted([state.fields for state in states])
    x = zeros(call.shape, dtype=call.dtype, chunks=-1)
    with executor.running(noted):
        result = strict(FUNCTIONS[call.function])(x, **call.options | options)
    return _Replay(noted.steps[0], result)


class _Noted:
    """Note the steps of a function, and answer them: a `dask_coop.graph.executor.Runner`.

    Parameters
    ----------
    states : list of State, optional
        The answer; by default a state of ones, which makes some result.
    """

    def __init__(self, states: list[State] | None = None) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self._states = states

    def states(
        self, op: Operation, arrays: Sequence[Any], axes: tuple[int, ...]
    ) -> executor.Groups:
        """Note a reduction."""
        self.steps.append((op, arrays, axes, None))
        ndim = arrays[0].ndim
        shape = (1,) * (ndim - len(axes))
        shape += () if op.monoid.entries is None else (op.monoid.entries,)
        return {(0,) * ndim: self._answer(op, shape)}

    def tables(
        self,
        op: Operation,
        arrays: Sequence[Any],
        weighted: bool,
        grid: Any,
        axes: tuple[int, ...],
    ) -> executor.Groups:
        """Note a histogram."""
        if weighted:
            raise Refused("there are no states of sums of weights, which are other arrays")
        self.steps.append((op, arrays, axes, grid))
        kept = arrays[0].ndim - len(axes)
        return {(0,) * kept: self._answer(op, (1,) * kept + grid.shape)}

    def _answer(self, op: Operation, shape: tuple[int, ...]) -> list[State]:
        dtypes = [*op.monoid.dtypes(op.element)]
        if self._states is None:
            return [tuple(np.ones(shape, dtype) for dtype in dtypes)]
        for state in self._states:
            if [field.dtype for field in state] != dtypes:
                raise ValueError(
                    f"a state of fields {[str(field.dtype) for field in state]} is of another "
                    f"release: {op.monoid.name} has {[*map(str, dtypes)]}"
                )
        return self._states


def _written(value: Any) -> str:
    """Return a value in JSON; arrays and dtypes as dicts, which `_read` reads."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.dtype):
            return {"dtype": value.str}
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufmM":
            ticks = value.view("i8") if value.dtype.kind in "mM" else value
            return {"dtype": value.dtype.str, "values": ticks.tolist()}
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return value.item()
        raise TypeError(f"{type(value).__name__} is no plain value")

    return json.dumps(value, default=plain, sort_keys=True)


def _read(value: dict[str, Any]) -> Any:
    if value.keys() == {"dtype"}:
        return np.dtype(value["dtype"])
    if value.keys() == {"dtype", "values"}:
        return np.array(value["values"], value["dtype"])
    return value

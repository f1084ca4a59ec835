"""A user's own monoid, and the reduction over it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, handle_out
from dask.tokenize import tokenize

from dask_coop import chunks, monoids, spine
from dask_coop.arguments import Axis, SplitEvery, find_axes
from dask_coop.engine import Engine, takes_engine
from dask_coop.monoids import Field, Operation, State
from dask_coop.planning import takes_expressions

#: The most bytes of a state that blocks of threads hold in shared memory.
STATE_BYTES = 128


class Monoid(monoids.Monoid):
    """An associative operation of one's own, for :func:`reduce` and :func:`scan`.

    Parameters
    ----------
    name : str
        An identifier: what keys and messages call the monoid.
    combine : callable
        Takes two states, what comes first first, and returns the state of both. States are arrays
        (NumPy scalars included), of NumPy or of CuPy: write it with NumPy's ufuncs. It must be
        associative and must not change its arguments. Where the state has several fields, it takes
        and returns tuples with an array a field.
    identity : number or tuple of numbers
        The neutral state: what no element gives, with one number a field.
    dtype : dtype
        That of a state: ``"f8"``, or one with fields, such as ``"f8,i8"`` or
        ``[("low", "f4"), ("high", "f4")]``. Bool, integers, floats or complex numbers.
    lift : callable, optional
        Makes the states of an array of elements, each by itself. By default elements are converted
        to `dtype`; a state of several fields needs one.
    finalize : callable, optional
        Makes the results of states; a state of several fields needs one.
    cuda : str or mapping, optional
        The same in CUDA C++, which CuPy chunks need: what ``combine`` returns, given the states
        ``a`` and ``b``, or the mapping ``{"lift": ..., "combine": ...}``, where the one of
        ``lift`` is given the element ``x``. An expression or, if it says ``return``, statements.
        Fields are members, called f0, f1 and so on if `dtype` does not name them; in braces they
        make a state: ``"{a.f0 * b.f0, b.f0 * a.f1 + b.f1}"``. Complex numbers have the members
        ``re`` and ``im``.
    commutative : bool
        Whether ``combine(a, b)`` equals ``combine(b, a)``. Then several axes can be reduced at
        once, and GPUs are faster, for they take elements as they come. A wrong False costs that, a
        wrong True the result, so False is the default.

    Raises
    ------
    TypeError, ValueError
        If the parts do not fit one another: `combine` and `finalize` are tried on the identity.

    Examples
    --------
    The recurrence ``y[i] = a[i] * y[i - 1] + b[i]`` is a scan over maps ``y -> a y + b``, of which
    the later follows on the earlier. Here elements are complex, ``a + b i``:

    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> affine = dc.Monoid(
    ...     "affine",
    ...     combine=lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
    ...     identity=(1, 0),
    ...     dtype="f8,f8",
    ...     lift=lambda x: (x.real, x.imag),
    ...     finalize=lambda f: f[1],
    ...     cuda={"lift": "{x.re, x.im}", "combine": "{a.f0 * b.f0, b.f0 * a.f1 + b.f1}"},
    ... )
    >>> y = dc.reduce(da.from_array([0.5 + 1j, 0.5 + 2j, 2 + 1j], chunks=2), affine)
    >>> float(y)
    6.0
    """

    lift: Callable[[Any], State]
    finalize: Callable[[State], Any]

    def __init__(
        self,
        name: str,
        combine: Callable[[Any, Any], Any],
        identity: Any,
        dtype: Any,
        *,
        lift: Callable[[Any], Any] | None = None,
        finalize: Callable[[Any], Any] | None = None,
        cuda: str | Mapping[str, str] | None = None,
        commutative: bool = False,
    ) -> None:
        if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
            raise ValueError(f"the name of a monoid must be an ASCII identifier, got {name!r}")
        dtypes = _dtypes(name, np.dtype(dtype))
        single = np.dtype(dtype).names is None
        if not single:
            for what, given in (("lift", lift), ("finalize", finalize)):
                if given is None:
                    raise TypeError(
                        f"monoid {name!r} has a state of several fields and needs {what}"
                    )
        values = _values(name, dtypes, (identity,) if single else identity)
        source = _source(name, cuda, lift is not None)
        merge = partial(_combine, name, combine, dtypes, single)
        # A ufunc reduces and accumulates by itself.
        ufunc = combine if single and _is_closed(combine, values[0]) else None
        super().__init__(
            name,
            tuple(
                Field(field, kind, partial(_constant, value), ufunc or np.add)
                for (field, kind), value in zip(dtypes.items(), values, strict=True)
            ),
            "biufc",
            # Programs are kept by their text, so the name depends on that and nothing else.
            f"{name}_{_digest(name, dtypes, values, source)}",
            None if ufunc else merge,
            partial(_lift, name, lift, dtypes),
            partial(_finalize, name, finalize, single),
            source,
            commutative,
        )
        parts = name, combine, values, dtypes, lift, finalize, source, commutative
        self.token: str = tokenize("dask_coop.Monoid", *parts)
        self.converts = lift is None
        self._try(merge)

    def _try(self, merge: Callable[[State, State], State]) -> None:
        """Combine the identity with itself, and make a result of it."""
        identity = self.identity(np.dtype("f8"))
        two = tuple(np.full(2, value) for value in identity)
        with np.errstate(all="ignore"):
            combined, result = merge(two, two), self.finalize(two)
        for field, value, found in zip(self.fields, identity, combined, strict=True):
            if not np.array_equal(found, np.full(2, value), equal_nan=value.dtype.kind in "fc"):
                raise ValueError(
                    f"the identity {identity} of monoid {self.name!r} is not neutral: combined "
                    f"with itself it gives {found[0]!r} in field {field.name!r}"
                )
        if getattr(result, "shape", None) != (2,):
            raise ValueError(
                f"finalize of monoid {self.name!r} must return an array of the states' shape"
            )
        self.result: np.dtype[Any] = result.dtype

    def __eq__(self, other: object) -> bool:
        """Return whether both are made of the same parts, in whatever process."""
        return isinstance(other, Monoid) and self.token == other.token

    def __hash__(self) -> int:
        """Return a number that goes with equality."""
        return hash(self.token)

    def __repr__(self) -> str:
        """Return the name."""
        return f"<dask_coop.Monoid {self.name!r}>"

    def __dask_tokenize__(self) -> Any:
        """Return the token of the parts."""
        return self.token


@takes_engine
@takes_expressions
def reduce(
    x: Any,
    monoid: Monoid,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Combine array elements over the given axes by one's own monoid.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    monoid : Monoid
    axis : int, tuple of int or None
        The axes to reduce; None stands for all of them. Only one, in which case elements are
        combined in their order, unless the monoid is commutative.
    keepdims : bool
        Whether the reduced axes stay, with length one.
    split_every : int, dict of int to int, or None
        How many states one task combines, in all or by axis; 16 by default.
    out : dask.array.Array, optional
        An array to overwrite with the result.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, with chunks of the kind of `x`'s. Where there is no element, the identity's result.

    Raises
    ------
    TypeError
        If the monoid cannot lift elements of that dtype, or has no CUDA source for CuPy chunks.
    AxisError, ValueError
        If `axis` is out of bounds or named twice, or names several for a monoid that is not
        commutative, or `split_every` is less than 2.

    Notes
    -----
    Chunks are combined up a tree, and elements of a NumPy chunk neighbour by neighbour, in blocks
    that take a few MiB; a ufunc does it by itself.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> import numpy as np
    >>> logaddexp = dc.Monoid("logaddexp", np.logaddexp, -np.inf, "f8", commutative=True)
    >>> round(float(dc.reduce(da.zeros(1000, chunks=100), logaddexp)), 6)
    6.907755
    """
    array = asanyarray(x)
    op = bind(monoid, array, "reduce")
    axes = find_axes(axis, array.ndim)
    if len(axes) > 1 and not monoid.commutative:
        raise ValueError(
            f"monoid {monoid.name!r} is not commutative, so that it reduces one axis at a time; "
            f"got axis={axis} of {array.ndim} dimensions"
        )
    outputs = {monoid.name: (monoid.finalize, op.output)}
    (lazy,) = spine.reduction(op, array, axes, keepdims, split_every, outputs)
    return handle_out(out, lazy)


def bind(monoid: Monoid, x: da.Array, caller: str) -> Operation:
    """Bind a user's monoid to the elements of `x`.

    Raises
    ------
    TypeError
        If it is none, cannot lift such elements, or has no CUDA source for CuPy chunks; the message
        speaks of the function `caller`.
    """
    if not isinstance(monoid, Monoid):
        raise TypeError(f"{caller} takes a dask_coop.Monoid, got {type(monoid).__name__}")
    if chunks.kind(x._meta) == "cupy" and monoid.cuda is None:
        raise TypeError(
            f"monoid {monoid.name!r} has no CUDA source for CuPy chunks; give Monoid one as cuda="
        )
    element = monoids.bind(monoid, x.dtype, x.dtype, caller).element
    (dtype, *_) = monoid.dtypes(element)
    if monoid.converts and dtype.kind == "c":
        # C++ makes no complex number of a real one.
        element = np.result_type(element, "c8")
    with np.errstate(all="ignore"):
        monoid.lift(np.ones(2, element))
    return Operation(monoid, element, monoid.result)


def _dtypes(name: str, dtype: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """Return the dtypes of a state's fields by their names."""
    fields = {"value": dtype} if dtype.names is None else {n: dtype[n] for n in dtype.names}
    for field, kind in fields.items():
        if not (field.isascii() and field.isidentifier()):
            raise ValueError(f"field {field!r} of monoid {name!r} must be an ASCII identifier")
        if kind.kind not in "biufc" or kind.itemsize > (16 if kind.kind == "c" else 8):
            raise TypeError(
                f"field {field!r} of monoid {name!r} is {kind}; states are made of bool, integers, "
                "float16 to float64, complex64 and complex128"
            )
    fields = {field: kind.newbyteorder("=") for field, kind in fields.items()}
    if (size := np.dtype([*fields.items()], align=True).itemsize) > STATE_BYTES:
        raise ValueError(f"a state of monoid {name!r} has {size} bytes; at most {STATE_BYTES} fit")
    return fields


def _values(name: str, dtypes: dict[str, np.dtype[Any]], identity: Any) -> State:
    """Return the numbers of the identity as NumPy scalars of the fields' dtypes."""
    if not isinstance(identity, tuple | list) or len(identity) != len(dtypes):
        raise ValueError(
            f"the identity of monoid {name!r} must be a tuple of {len(dtypes)}, one number a field "
            f"({', '.join(dtypes)}), got {identity!r}"
        )
    values = []
    for (field, dtype), number in zip(dtypes.items(), identity, strict=True):
        try:
            value = dtype.type(number)
            fits = value.shape == () and (dtype.kind in "fc" or value == number)
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise TypeError(
                f"the identity of monoid {name!r} has {number!r} in field {field!r}, which is "
                f"no {dtype}"
            )
        values.append(value)
    return tuple(values)


def _source(
    name: str, cuda: str | Mapping[str, str] | None, is_lifted: bool
) -> tuple[str, str] | None:
    """Return the C++ of lift and of combine."""
    if cuda is None:
        return None
    given = {"combine": cuda} if isinstance(cuda, str) else dict(cuda)
    if not {"combine"} <= given.keys() <= {"lift", "combine"}:
        raise ValueError(
            f"cuda of monoid {name!r} must be a string or have the keys 'combine' and, if needed, "
            f"'lift'; got {sorted(given)}"
        )
    if is_lifted and "lift" not in given:
        raise TypeError(f"monoid {name!r} has lift, so its cuda needs one too: {{'lift': ...}}")
    return given.get("lift", "convert<State>(x)"), given["combine"]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _is_closed(combine: Any, value: Any) -> TypeGuard[np.ufunc]:
    """Return whether it is a ufunc that makes a number of the same dtype of two."""
    if not isinstance(combine, np.ufunc) or (combine.nin, combine.nout) != (2, 1):
        return False
    with np.errstate(all="ignore"):
        return bool(combine(value, value).dtype == value.dtype)


# What follows is called by tasks.


def _constant(value: Any, dtype: Any) -> Any:
    return value


def _combine(
    name: str,
    combine: Callable[[Any, Any], Any],
    dtypes: dict[str, np.dtype[Any]],
    single: bool,
    a: State,
    b: State,
) -> State:
    found = (combine(a[0], b[0]),) if single else combine(a, b)
    return _fields(name, "combine", dtypes, found, a[0].shape, a[0])


def _lift(
    name: str, lift: Callable[[Any], Any] | None, dtypes: dict[str, np.dtype[Any]], x: Any
) -> State:
    found = x if lift is None else lift(x)
    if not isinstance(found, tuple) and len(dtypes) == 1:
        found = (found,)
    return _fields(name, "lift", dtypes, found, x.shape, x)


def _fields(
    name: str,
    caller: str,
    dtypes: dict[str, np.dtype[Any]],
    found: Any,
    shape: tuple[int, ...],
    like: Any,
) -> State:
    """Hold what a user's function has returned to the shape and dtypes of a state."""
    if not isinstance(found, tuple | list) or len(found) != len(dtypes):
        raise ValueError(
            f"{caller} of monoid {name!r} must return one array a field ({', '.join(dtypes)})"
        )
    fields = []
    for (field, dtype), values in zip(dtypes.items(), found, strict=True):
        # The same number for all elements need not be an array.
        if not hasattr(values, "astype"):
            kind = np.result_type(dtype, values)
            values = np.full_like(like, values, dtype=kind, shape=shape)
        if values.shape != shape:
            raise ValueError(
                f"{caller} of monoid {name!r} gives field {field!r} shape {values.shape}; "
                f"it was given {shape}"
            )
        kind = values.dtype
        if kind != dtype and not np.can_cast(kind, dtype, "same_kind"):
            raise TypeError(
                f"{caller} of monoid {name!r} gives {kind} for field {field!r}, which is {dtype}"
            )
        fields.append(values.astype(dtype, copy=False))
    return tuple(fields)


def _finalize(name: str, finalize: Callable[[Any], Any] | None, single: bool, state: State) -> Any:
    if finalize is None:
        return state[0]
    return finalize(state[0] if single else state)

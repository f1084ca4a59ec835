"""Users' monoids, and the reduction and the scan by a monoid or a ufunc."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, handle_out
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra import monoids, operation
from dask_coop.algebra.monoids import ALL, ANY, Field, State
from dask_coop.algebra.operation import Operation
from dask_coop.api.arguments import Axis, SplitEvery, find_axes
from dask_coop.api.call.public import Engine, public
from dask_coop.api.cumulative import cummax, cummin, cumprod, cumsum, logcumsumexp
from dask_coop.api.monoids import laws, states, ufuncs
from dask_coop.api.monoids.fields import Fields
from dask_coop.api.scan_arguments import ScanArguments, scan_array, scan_bound
from dask_coop.graph import reduce as graph_reduce


class Monoid(monoids.MonoidRow):
    """A user-defined associative operation, for :func:`reduce` and :func:`scan`.

    Parameters
    ----------
    name : str
        An identifier that names the monoid in keys and messages.
    combine : callable
        Takes two states, the earlier one first, and returns their combined state. States are NumPy
        or CuPy arrays, or NumPy scalars; use NumPy's ufuncs. It must be associative and must not
        change its arguments. For states of several fields it takes and returns tuples with one
        array per field.
    identity : number or tuple of numbers
        The neutral state, which is the state of no elements, with one number per field. For a
        vector, nested sequences, or one number for all of its elements.
    dtype : dtype
        The dtype of a state: ``"f8"``, or one with fields, such as ``"f8,i8"`` or
        ``[("low", "f4"), ("high", "f4")]``. Bool, integers, floats or complex numbers, or small
        vectors and matrices of these: ``("f8", (3,))``, ``[("low", "f4", (2,)), ("n", "i8")]``. The
        functions take and return vectors as arrays whose last axes are those of the vector:
        ``v[..., 0]``.
    lift : callable, optional
        Turns an array of elements into their states, element by element. By default elements are
        converted to `dtype`. Required for states of several fields or of vectors.
    finalize : callable, optional
        Turns states into results, one number each, or into a tuple of several results. Required for
        states of several fields or of vectors.
    cuda : str or mapping, optional
        The functions in CUDA C++, required for CuPy chunks: ``combine`` of the states ``a`` and
        ``b``, or the mapping ``{"lift": ..., "combine": ...}`` with ``lift`` of the element ``x``.
        Each is an expression or, if it contains ``return``, statements. Fields are members, called
        f0, f1 and so on if `dtype` does not name them; braces make a state of them:
        ``"{a.f0 * b.f0, b.f0 * a.f1 + b.f1}"``. Complex numbers have the members ``re`` and ``im``.
        Vectors are C arrays: ``a.low[0]``, or ``a.value[0]`` if the state is a single vector.
    commutative : bool
        Whether ``combine(a, b)`` equals ``combine(b, a)``. Then several axes can be reduced at
        once, and GPUs are faster, because they may combine elements in any order. A wrong False
        only loses that; a wrong True gives wrong results.
    check : bool
        Whether to try the laws, and refuse a monoid that breaks one: see Notes.

    Raises
    ------
    TypeError, ValueError
        If the arguments do not fit one another (the constructor tries `combine` and `finalize` on
        the identity), or if a law is broken.

    Notes
    -----
    Results do not depend on chunks if `combine` is associative, the identity is neutral on both
    sides, and a monoid declared commutative commutes. The library tries this on NumPy arrays of a
    few small numbers, of either sign where the dtype has one. Without `lift` the constructor does
    so; with `lift`, :func:`reduce` and :func:`scan` do when they first see elements of a dtype.
    Floats may differ by rounding. States may differ if `finalize` gives the same result for both
    after any one further element: -6 and 6 are the same to ``gcd``. If a function fails on these
    numbers, or a state is not finite, the check passes. Use ``check=False`` for elements among
    which these numbers do not occur: 0 is neutral for the maximum of non-negative numbers.

    Examples
    --------
    The recurrence ``y[i] = a[i] * y[i - 1] + b[i]`` is a scan of maps ``y -> a y + b``, which are
    composed, the earlier map first. Here elements are complex, ``a + b i``:

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

    The two largest elements, in one vector:

    >>> import numpy as np
    >>> top = dc.Monoid(
    ...     "top",
    ...     combine=lambda a, b: np.sort(np.concatenate([a, b], -1), -1)[..., 2:],
    ...     identity=-np.inf,
    ...     dtype=("f8", (2,)),
    ...     lift=lambda x: np.stack([np.full_like(x, -np.inf), x], -1),
    ...     finalize=lambda v: (v[..., 1], v[..., 0]),
    ...     commutative=True,
    ... )
    >>> first, second = dc.reduce(da.from_array([3.0, 1, 4, 1, 5], chunks=2), top)
    >>> float(first), float(second)
    (5.0, 4.0)
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
        check: bool = True,
    ) -> None:
        if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
            raise ValueError(f"the name of a monoid must be an ASCII identifier, got {name!r}")
        layout = Fields.of(name, np.dtype(dtype))
        dtypes, single = layout.dtypes, layout.single
        if layout.vectors or not single:
            many = "vectors" if layout.vectors else "several fields"
            for keyword, function in (("lift", lift), ("finalize", finalize)):
                if function is None:
                    raise TypeError(f"monoid {name!r} has a state of {many} and needs {keyword}")
        values = layout.identity(identity)
        source = _source(name, cuda, lift is not None)
        merge = partial(layout.combine, combine)
        # A ufunc reduces and accumulates by itself.
        ufunc = combine if single and _is_closed(combine, values) else None
        super().__init__(
            name,
            tuple(
                Field(field, kind, partial(_constant, value), ufunc or np.add)
                for (field, kind), value in zip(dtypes.items(), values, strict=True)
            ),
            "biufc",
            # Compiled programs are cached by their text, so the name depends only on that.
            f"{name}_{_digest(name, dtypes, values, source)}",
            None if ufunc else merge,
            partial(layout.lift, lift),
            partial(layout.finalize, finalize),
            source,
            commutative,
        )
        parts = name, combine, values, layout, lift, finalize, source, commutative
        self.token: str = tokenize("dask_coop.Monoid", *parts)
        self.layout: Fields = layout
        self.converts: bool = lift is None
        self.checks: bool = check
        self._try(merge)
        if self.converts and check:
            laws.check(self, layout.members[0].dtype)

    def _try(self, merge: Callable[[State, State], State]) -> None:
        """Check `combine` and `finalize` on the identity, and set the results' dtypes."""
        identity, n = self.identity(np.dtype("f8")), self.layout.probe
        many = tuple(np.full(n, value) for value in identity)
        with np.errstate(all="ignore"):
            combined, result = merge(many, many), self.finalize(many)
        for field, value, values in zip(self.fields, identity, combined, strict=True):
            equal = np.array_equal(values, np.full(n, value), equal_nan=value.dtype.kind in "fc")
            if self.checks and not equal:
                raise ValueError(
                    f"the identity {identity} of monoid {self.name!r} is not neutral: combined "
                    f"with itself it gives {values[0]!r} in field {field.name!r}"
                )
        self.several: bool = isinstance(result, tuple)
        results = result if self.several else (result,)
        shapes = [getattr(values, "shape", None) for values in results]
        if not shapes or any(shape != (n,) for shape in shapes):
            raise ValueError(
                f"finalize of monoid {self.name!r} must return an array of the states' shape, or a "
                f"tuple of such arrays; of states of shape {(n,)} it makes shape "
                f"{', '.join(map(str, shapes))}"
            )
        self.results: tuple[np.dtype[Any], ...] = tuple(values.dtype for values in results)

    @property
    def result(self) -> np.dtype[Any]:
        """The dtype of the result, or of the first of several."""
        return self.results[0]

    def part(self, i: int) -> Monoid:
        """Return the monoid with only the result `i` of several."""
        monoid = copy(self)
        finalize = partial(_pick, self.finalize, i)
        parts = {"token": tokenize(self.token, i), "several": False, "results": (self.results[i],)}
        # Nobody uses the new object yet, so it may change.
        monoid.__dict__.update(finalize=finalize, **parts)
        return monoid

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same arguments, even across processes."""
        return isinstance(other, Monoid) and self.token == other.token

    def __hash__(self) -> int:
        """Return the hash of the token."""
        return hash(self.token)

    def __repr__(self) -> str:
        """Return the name."""
        return f"<dask_coop.Monoid {self.name!r}>"

    def __dask_tokenize__(self) -> Any:
        """Return the token of the arguments."""
        return self.token


@public("reduction", dask=False)
def reduce(
    x: Any,
    monoid: Monoid | np.ufunc | str,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    return_state: bool = False,
    options: Mapping[str, Any] | None = None,
    engine: Engine = "auto",
) -> Any:
    """Reduce array elements over the given axes by a monoid or a ufunc.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    monoid : Monoid, numpy.ufunc or str
        The operation. For `return_state`, the name of a reduction of this library that reads an
        array once, such as "mean", "var", "kurtosis" or "histogram". Supported ufuncs of NumPy are
        add, multiply, maximum, minimum, logical_and, logical_or, logical_xor, bitwise_and,
        bitwise_or, bitwise_xor and logaddexp, with the dtypes of their ``reduce``.
    axis : int, tuple of int or None
        The axes to reduce; None stands for all of them. A monoid that is not commutative takes one
        axis only, and combines elements in their order.
    keepdims : bool
        Whether the reduced axes stay, with length one.
    split_every : int, dict of int to int, or None
        The number of states that one task combines, in all or by axis; 16 by default.
    out : dask.array.Array, optional
        An array to overwrite with the result.
    return_state : bool
        Whether to return the last state of a named reduction, not its result: it can be stored, and
        :func:`combine` combines it with the states of other arrays.
    options : dict, optional
        Other arguments of a named reduction, such as ``{"ddof": 1}``.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array, tuple of them, or Delayed
        Lazy, with chunks of the kind of `x`'s; a tuple if `finalize` returns one. Without elements,
        the result of the identity; maximum and minimum raise ValueError. With `return_state`, a
        Delayed that computes to a :class:`ReductionState`.

    Raises
    ------
    TypeError
        If `monoid` is neither a Monoid nor a supported ufunc, cannot lift elements of that dtype,
        or has no CUDA source for CuPy chunks; or if `out` is given for several results; or if
        `return_state` or `options` are given and the operation is not a name.
    AxisError, ValueError
        If `axis` is out of bounds, repeated, or a tuple of several for a monoid that is not
        commutative, `split_every` is less than 2, the monoid breaks a law over elements of that
        dtype, or no reduction of that name has states.

    Notes
    -----
    The states of chunks are combined up a tree. Within a NumPy chunk, `combine` takes pairs of
    neighbours, in blocks of a few MiB; a ufunc reduces the chunk by itself.

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
    if isinstance(monoid, str) and return_state:
        if out is not None:
            raise TypeError("reduce takes no out with return_state=True; a state is no array")
        named = {"axis": axis, **(options or {})}
        return states.lifted(monoid, array, named, keepdims, split_every)
    if return_state or options:
        raise TypeError(
            "reduce takes return_state=True and options with the name of a reduction, such as "
            f"'sum'; got {getattr(monoid, '__name__', None) or type(monoid).__name__}"
        )
    row: Any = monoid
    if isinstance(row, np.ufunc):
        if (function := ufuncs.reduction(row)) is not None:
            return function(array, axis, keepdims=keepdims, split_every=split_every, out=out)
        row = Monoid(**ufuncs.parts(row, array.dtype, "reduce"))
    op = bind(row, array, "reduce")
    axes = find_axes(axis, array.ndim)
    if len(axes) > 1 and not row.commutative:
        raise ValueError(
            f"monoid {row.name!r} is not commutative, so that it reduces one axis at a time; "
            f"got axis={axis} of {array.ndim} dimensions"
        )
    outputs = {row.name: (row.finalize, op.output)}
    if row.several:
        refuse_out("reduce", row, out)
        outputs = {
            f"{row.name}-{i}": (partial(_pick, row.finalize, i), dtype)
            for i, dtype in enumerate(row.results)
        }
    lazy = graph_reduce.reduction(op, array, axes, keepdims, split_every, outputs)
    return tuple(lazy) if row.several else handle_out(out, lazy[0])


@public("scan", dask=False)
def scan(
    x: Any,
    monoid: monoids.MonoidRow | np.ufunc,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array | tuple[da.Array, ...]:
    """Scan array elements along an axis by a monoid or a ufunc.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Elements that `monoid` takes, in NumPy or CuPy chunks.
    monoid : Monoid or numpy.ufunc
        The operation: a :class:`Monoid`; one of the ufuncs that :func:`reduce` takes, with the
        dtypes of their ``accumulate``; or a row of :mod:`dask_coop.monoids` whose states are one
        value: `SUM`, `PROD`, `MIN`, `MAX`, `ANY`, `ALL`, `COUNT_NONZERO`, `LOGADDEXP`.
    axis, out, method
        As for :func:`dask_coop.cumsum`.
    dtype : dtype, optional
        The dtype of the result. By default, for a :class:`Monoid` that of `finalize`'s result; for
        ufuncs and rows that of the states, or that of `x` if the states are wider floats.
    exclusive, reverse, include_initial, segments
        As for :func:`dask_coop.cumsum`, with the identity of the monoid instead of 0.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.

    Returns
    -------
    dask.array.Array or tuple of them
        As for :func:`dask_coop.cumsum`; a tuple if the monoid has several results, each computed by
        a separate scan.

    Raises
    ------
    TypeError, AxisError, ValueError
        As for :func:`dask_coop.cumsum`, and as for :func:`reduce`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> from dask_coop.monoids import ANY
    >>> dc.scan(da.from_array([0, 0, 3, 0], chunks=2), ANY).compute()
    array([False, False,  True,  True])
    """
    array = asanyarray(x)
    options = ScanArguments(axis, out, method, exclusive, reverse, include_initial, segments)
    if isinstance(monoid, np.ufunc):
        if monoid in _SCANS:
            function: Callable[..., da.Array] = _SCANS[monoid]
            if dtype is None and monoid is np.logaddexp:
                dtype = ufuncs.logaddexp_dtype(array.dtype)
            return function(array, dtype=dtype, **options._asdict())
        rows: dict[np.ufunc, monoids.MonoidRow] = {np.logical_or: ANY, np.logical_and: ALL}
        monoid = rows.get(monoid) or Monoid(**ufuncs.parts(monoid, array.dtype, "scan"))
    if isinstance(monoid, Monoid):
        op, parts = bind(monoid, array, "scan"), [monoid]
        if monoid.several:
            refuse_out("scan", monoid, out)
            parts = [monoid.part(i) for i in range(len(monoid.results))]
        outputs = [part.result if dtype is None else np.dtype(dtype) for part in parts]
        results = tuple(
            scan_bound(replace(op, monoid=part, output=output), monoid.name, array, options)
            for part, output in zip(parts, outputs, strict=True)
        )
        return results if monoid.several else results[0]
    if not isinstance(monoid, monoids.MonoidRow):
        raise ufuncs.refusal("scan", monoid)
    if len(monoid.fields) != 1:
        names = ", ".join(field.name for field in monoid.fields)
        raise TypeError(f"scan takes monoids of one field; {monoid.name} has {names}")
    if monoid is monoids.SQUARES:
        # Its lift squares elements, but scans add elements as they are.
        raise TypeError("scan does not take squares; scan x * x by sum")
    name = "cum" + monoid.name.replace("_", "-")
    element = array.dtype
    if monoid.fields[0].role == "real" and element.kind in "biu":
        element = np.dtype("f8")
    output = monoid.output(element) if dtype is None else np.dtype(dtype)
    return scan_array(monoid, name, array, element, output, options)


_SCANS = {
    np.add: cumsum,
    np.multiply: cumprod,
    np.minimum: cummin,
    np.maximum: cummax,
    np.logaddexp: logcumsumexp,
}


def refuse_out(caller: str, monoid: Monoid, out: Any) -> None:
    """Raise TypeError if `out` is given for a monoid with several results."""
    if out is not None:
        raise TypeError(
            f"{caller} by monoid {monoid.name!r} has {len(monoid.results)} results, which one out "
            "cannot take; leave it out"
        )


def bind(monoid: Monoid, x: da.Array, caller: str) -> Operation:
    """Bind a user's monoid to the elements of `x`.

    Raises
    ------
    TypeError
        If `monoid` is no Monoid, cannot lift such elements, or has no CUDA source for CuPy chunks;
        the message names the function `caller`.
    ValueError
        If `monoid` breaks a law over such elements.
    """
    if not isinstance(monoid, Monoid):
        raise ufuncs.refusal(caller, monoid)
    if chunks.kind(x._meta) == "cupy" and monoid.cuda is None:
        raise TypeError(
            f"monoid {monoid.name!r} has no CUDA source for CuPy chunks; give Monoid one as cuda="
        )
    element = operation.bind(monoid, x.dtype, x.dtype, caller).element
    (dtype, *_) = monoid.dtypes(element)
    if monoid.converts and dtype.kind == "c":
        # C++ does not convert real numbers to complex ones.
        element = np.result_type(element, "c8")
    with np.errstate(all="ignore"):
        monoid.lift(np.ones(monoid.layout.probe, element))
    if monoid.checks and not monoid.converts:
        laws.check(monoid, element)
    return Operation(monoid, element, monoid.result)


def _source(
    name: str, cuda: str | Mapping[str, str] | None, is_lifted: bool
) -> tuple[str, str] | None:
    """Return the C++ source of lift and of combine."""
    if cuda is None:
        return None
    sources = {"combine": cuda} if isinstance(cuda, str) else dict(cuda)
    if not {"combine"} <= sources.keys() <= {"lift", "combine"}:
        raise ValueError(
            f"cuda of monoid {name!r} must be a string or have the keys 'combine' and, if needed, "
            f"'lift'; got {sorted(sources)}"
        )
    if is_lifted and "lift" not in sources:
        raise TypeError(f"monoid {name!r} has lift, so its cuda needs one too: {{'lift': ...}}")
    return sources.get("lift", "convert<State>(x)"), sources["combine"]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _is_closed(combine: Any, values: State) -> TypeGuard[np.ufunc]:
    """Return whether `combine` is a ufunc of two numbers that returns one of the state's dtype."""
    if not isinstance(combine, np.ufunc) or (combine.nin, combine.nout, len(values)) != (2, 1, 1):
        return False
    (value,) = values
    with np.errstate(all="ignore"):
        return bool(combine(value, value).dtype == value.dtype)


# Inside the task.


def _constant(value: Any, dtype: Any) -> Any:
    return value


def _pick(finalize: Callable[[State], Any], i: int, state: State) -> Any:
    return finalize(state)[i]

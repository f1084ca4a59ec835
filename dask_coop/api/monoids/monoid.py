"""A user's own monoid, and the reduction and the scan by it or a ufunc."""

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
from dask_coop.api.monoids import laws, ufuncs
from dask_coop.api.monoids.fields import Fields
from dask_coop.api.scan_arguments import ScanArguments, scan_array, scan_bound
from dask_coop.graph import reduce as graph_reduce


class Monoid(monoids.MonoidRow):
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
        The neutral state: what no element gives, with one number a field. Of a vector nested
        sequences, or one number for all of it.
    dtype : dtype
        That of a state: ``"f8"``, or one with fields, such as ``"f8,i8"`` or
        ``[("low", "f4"), ("high", "f4")]``. Bool, integers, floats or complex numbers, or small
        vectors and matrices of these: ``("f8", (3,))``, ``[("low", "f4", (2,)), ("n", "i8")]``. The
        functions take and return vectors as arrays with their axes behind those of the states:
        ``v[..., 0]``.
    lift : callable, optional
        Makes the states of an array of elements, each by itself. By default elements are converted
        to `dtype`; a state of several fields or of vectors needs one.
    finalize : callable, optional
        Makes the results of states, of a number each, or a tuple of several results; a state of
        several fields or of vectors needs one.
    cuda : str or mapping, optional
        The same in CUDA C++, which CuPy chunks need: what ``combine`` returns, given the states
        ``a`` and ``b``, or the mapping ``{"lift": ..., "combine": ...}``, where the one of
        ``lift`` is given the element ``x``. An expression or, if it says ``return``, statements.
        Fields are members, called f0, f1 and so on if `dtype` does not name them; in braces they
        make a state: ``"{a.f0 * b.f0, b.f0 * a.f1 + b.f1}"``. Complex numbers have the members
        ``re`` and ``im``, and vectors are C arrays: ``a.low[0]``, or ``a.value[0]`` where the state
        is one vector.
    commutative : bool
        Whether ``combine(a, b)`` equals ``combine(b, a)``. Then several axes can be reduced at
        once, and GPUs are faster, for they take elements as they come. A wrong False costs that, a
        wrong True the result, so False is the default.
    check : bool
        Whether the laws are tried, and a monoid that breaks one is refused: see Notes.

    Raises
    ------
    TypeError, ValueError
        If the parts do not fit one another: `combine` and `finalize` are tried on the identity. Or
        if a law is broken.

    Notes
    -----
    Results do not depend on chunks if `combine` is associative, the identity neutral on both sides,
    and states commute where that is claimed. This is tried with a few small numbers, of either sign
    where the dtype has one, as NumPy arrays: here if elements are converted to states, and where
    there is a `lift` when :func:`reduce` and :func:`scan` first see elements of a dtype. Floats may
    differ by their roundings. States may differ too, if `finalize` makes the same of them after
    any one more element: -6 and 6 are the same to ``gcd``. If a function fails on such numbers, or
    a state is not finite, nothing is said of it. ``check=False`` is for monoids of elements that
    have no such numbers: 0 is neutral to the maximum of what is never negative.

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
            for what, given in (("lift", lift), ("finalize", finalize)):
                if given is None:
                    raise TypeError(f"monoid {name!r} has a state of {many} and needs {what}")
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
            # Programs are kept by their text, so the name depends on that and nothing else.
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
        """Combine the identity with itself, and make a result of it."""
        identity, n = self.identity(np.dtype("f8")), self.layout.probe
        many = tuple(np.full(n, value) for value in identity)
        with np.errstate(all="ignore"):
            combined, result = merge(many, many), self.finalize(many)
        for field, value, found in zip(self.fields, identity, combined, strict=True):
            equal = np.array_equal(found, np.full(n, value), equal_nan=value.dtype.kind in "fc")
            if self.checks and not equal:
                raise ValueError(
                    f"the identity {identity} of monoid {self.name!r} is not neutral: combined "
                    f"with itself it gives {found[0]!r} in field {field.name!r}"
                )
        self.several: bool = isinstance(result, tuple)
        results = result if self.several else (result,)
        shapes = [getattr(one, "shape", None) for one in results]
        if not shapes or any(shape != (n,) for shape in shapes):
            raise ValueError(
                f"finalize of monoid {self.name!r} must return an array of the states' shape, or a "
                f"tuple of such arrays; of states of shape {(n,)} it makes shape "
                f"{', '.join(map(str, shapes))}"
            )
        self.results: tuple[np.dtype[Any], ...] = tuple(one.dtype for one in results)

    @property
    def result(self) -> np.dtype[Any]:
        """The dtype of the result, or of the first of several."""
        return self.results[0]

    def part(self, i: int) -> Monoid:
        """Return the monoid that makes the result `i` only, where there are several."""
        one = copy(self)
        finalize = partial(_pick, self.finalize, i)
        parts = {"token": tokenize(self.token, i), "several": False, "results": (self.results[i],)}
        # The new object is not in use yet.
        one.__dict__.update(finalize=finalize, **parts)
        return one

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


@public("reduction", dask=False)
def reduce(
    x: Any,
    monoid: Monoid | np.ufunc,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array | tuple[da.Array, ...]:
    """Combine array elements over the given axes by one's own monoid or a ufunc.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers, in NumPy or CuPy chunks.
    monoid : Monoid or numpy.ufunc
        What combines. Of NumPy's ufuncs add, multiply, maximum, minimum, logical_and, logical_or,
        logical_xor, bitwise_and, bitwise_or, bitwise_xor and logaddexp, with the dtypes that their
        ``reduce`` has.
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
    dask.array.Array or tuple of them
        Lazy, with chunks of the kind of `x`'s; a tuple where `finalize` makes one. Where there is
        no element, the identity's result; a maximum or minimum raises ValueError.

    Raises
    ------
    TypeError
        If the monoid is none, cannot lift elements of that dtype, or has no CUDA source for CuPy
        chunks, or if `out` is to take several results.
    AxisError, ValueError
        If `axis` is out of bounds or named twice, or names several for a monoid that is not
        commutative, `split_every` is less than 2, or the monoid breaks a law over elements of that
        dtype.

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
    if isinstance(monoid, np.ufunc):
        if (function := ufuncs.reduction(monoid)) is not None:
            return function(array, axis, keepdims=keepdims, split_every=split_every, out=out)
        monoid = Monoid(**ufuncs.parts(monoid, array.dtype, "reduce"))
    op = bind(monoid, array, "reduce")
    axes = find_axes(axis, array.ndim)
    if len(axes) > 1 and not monoid.commutative:
        raise ValueError(
            f"monoid {monoid.name!r} is not commutative, so that it reduces one axis at a time; "
            f"got axis={axis} of {array.ndim} dimensions"
        )
    outputs = {monoid.name: (monoid.finalize, op.output)}
    if monoid.several:
        refuse_out("reduce", monoid, out)
        outputs = {
            f"{monoid.name}-{i}": (partial(_pick, monoid.finalize, i), dtype)
            for i, dtype in enumerate(monoid.results)
        }
    lazy = graph_reduce.reduction(op, array, axes, keepdims, split_every, outputs)
    return tuple(lazy) if monoid.several else handle_out(out, lazy[0])


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
    """Scan of array elements along an axis by any monoid or a ufunc.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Elements that `monoid` takes, in NumPy or CuPy chunks.
    monoid : Monoid or numpy.ufunc
        What combines: one's own :class:`Monoid`; one of NumPy's ufuncs that :func:`reduce` takes,
        with the dtypes that their ``accumulate`` has; or a row of :mod:`dask_coop.monoids` whose
        states are one value: `SUM`, `PROD`, `MIN`, `MAX`, `ANY`, `ALL`, `COUNT_NONZERO`,
        `LOGADDEXP`.
    axis, out, method
        As for :func:`dask_coop.cumsum`.
    dtype : dtype, optional
        The dtype of the result. By default that of what one's own monoid makes of states; else
        that of the states, and that of `x` where float states are wider.
    exclusive, reverse, include_initial, segments
        As for :func:`dask_coop.cumsum`, with the identity of the monoid in the place of 0.
    engine : {"auto", "collective"}
        As for :func:`dask_coop.cumsum`.

    Returns
    -------
    dask.array.Array or tuple of them
        As of :func:`dask_coop.cumsum`; a tuple where the monoid makes several results, each by a
        scan of its own.

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
    given = ScanArguments(axis, out, method, exclusive, reverse, include_initial, segments)
    if isinstance(monoid, np.ufunc):
        if monoid in _SCANS:
            function: Callable[..., da.Array] = _SCANS[monoid]
            if dtype is None and monoid is np.logaddexp:
                dtype = ufuncs.logaddexp_dtype(array.dtype)
            return function(array, dtype=dtype, **given._asdict())
        rows: dict[np.ufunc, monoids.MonoidRow] = {np.logical_or: ANY, np.logical_and: ALL}
        monoid = rows.get(monoid) or Monoid(**ufuncs.parts(monoid, array.dtype, "scan"))
    if isinstance(monoid, Monoid):
        op, parts = bind(monoid, array, "scan"), [monoid]
        if monoid.several:
            refuse_out("scan", monoid, out)
            parts = [monoid.part(i) for i in range(len(monoid.results))]
        outputs = [part.result if dtype is None else np.dtype(dtype) for part in parts]
        results = tuple(
            scan_bound(replace(op, monoid=part, output=output), monoid.name, array, given)
            for part, output in zip(parts, outputs, strict=True)
        )
        return results if monoid.several else results[0]
    if not isinstance(monoid, monoids.MonoidRow):
        raise ufuncs.refusal("scan", monoid)
    if len(monoid.fields) != 1:
        names = ", ".join(field.name for field in monoid.fields)
        raise TypeError(f"scan takes monoids of one field; {monoid.name} has {names}")
    if monoid is monoids.SQUARES:
        # Its states add up squares, and scans add up elements.
        raise TypeError("scan does not take squares; scan x * x by sum")
    name = "cum" + monoid.name.replace("_", "-")
    element = array.dtype
    if monoid.fields[0].role == "real" and element.kind in "biu":
        element = np.dtype("f8")
    output = monoid.output(element) if dtype is None else np.dtype(dtype)
    return scan_array(monoid, name, array, element, output, given)


_SCANS = {
    np.add: cumsum,
    np.multiply: cumprod,
    np.minimum: cummin,
    np.maximum: cummax,
    np.logaddexp: logcumsumexp,
}


def refuse_out(caller: str, monoid: Monoid, out: Any) -> None:
    """Refuse one array to overwrite with several results."""
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
        If it is none, cannot lift such elements, or has no CUDA source for CuPy chunks; the message
        speaks of the function `caller`.
    ValueError
        If it breaks a law over such elements.
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
        # C++ makes no complex number of a real one.
        element = np.result_type(element, "c8")
    with np.errstate(all="ignore"):
        monoid.lift(np.ones(monoid.layout.probe, element))
    if monoid.checks and not monoid.converts:
        laws.check(monoid, element)
    return Operation(monoid, element, monoid.result)


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


def _is_closed(combine: Any, values: State) -> TypeGuard[np.ufunc]:
    """Return whether it is a ufunc that makes of two states, one number each, a third."""
    if not isinstance(combine, np.ufunc) or (combine.nin, combine.nout, len(values)) != (2, 1, 1):
        return False
    (value,) = values
    with np.errstate(all="ignore"):
        return bool(combine(value, value).dtype == value.dtype)


# What follows is called by tasks.


def _constant(value: Any, dtype: Any) -> Any:
    return value


def _pick(finalize: Callable[[State], Any], i: int, state: State) -> Any:
    return finalize(state)[i]

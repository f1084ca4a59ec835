"""The decorator of public functions.

From a call to its result::

    keywords --> engine= --> Dask's kind of array --> the function --> a lazy result
                    |                |                     |
                    |                |               Refused: Dask's function of the same name
                    |                expressions are lowered to graphs, and results raised again
                    "collective": the same call runs at once, with messages instead of tasks

For an array with xarray's labels, the function gets its data, and the result is labelled again
(`labelled`).

No chunk backend takes objects or sparse chunks, for example. A function raises `Refused` when it
meets them, and Dask's function of the same name is called instead, unless the configuration's
``coop.fallback`` is "raise".

Functions that differ only in their names, such as `sum` and `nansum`, share a body: the first is
`named`, and the second is `like` it.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from functools import partial, wraps
from types import CodeType, TracebackType
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, get_args

import dask.array as da
import numpy as np
from dask import compute
from dask.array.core import Array, handle_out
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.api.call.ahead import warm_if_wanted
from dask_coop.api.call.fallback import dasks, fall_back, left_to_dask, remember
from dask_coop.api.call.labelled import with_labels
from dask_coop.api.call.names import check_keywords
from dask_coop.api.call.planning import (
    call_with_graphs,
    convert_parts,
    with_expressions,
    with_values,
)
from dask_coop.api.call.reading import read_by_us
from dask_coop.api.call.report import count, counted, is_inside, uncounted
from dask_coop.api.call.results import Histogram, Histogram2D
from dask_coop.api.call.units import with_units
from dask_coop.errors import Declined, Incompatible, Refused, RefusedByDask, Silent
from dask_coop.graph import config, executor
from dask_coop.graph.joined import joined, split
from dask_coop.graph.transfer import copy_to_host

P = ParamSpec("P")
R = TypeVar("R")

#: "auto" stands for the configuration's ``coop.engine``, by default a lazy graph.
Engine = Literal["auto", "collective"]

ENGINES = get_args(Engine)

#: The kind of a public function. With the engine "collective", reductions, selections of elements
#: and histograms return values, and scans return arrays that stay on the cluster. "blockwise"
#: functions are lazy with every engine.
Kind = Literal["reduction", "selection", "scan", "histogram", "blockwise"]

#: The named tuples for results that Dask's functions return as plain tuples.
HISTOGRAMS: dict[str, type[Any]] = {
    "histogram": Histogram,
    "histogram2d": Histogram2D,
    "histogramdd": Histogram,
}

#: The blockwise functions whose chunks may be joined: results have their chunks, or one.
_JOINS = {
    *(f"move_{name}" for name in ("sum", "mean", "std", "var", "min", "max", "median")),
    *(f"move_{name}" for name in ("quantile", "rank", "argmin", "argmax")),
    *("digitize", "isin", "unique", "value_counts", "crosstab", "percentileofscore", "cov"),
    *("corrcoef", "polyfit", "binned_statistic", "binned_statistic_2d", "binned_statistic_dd"),
    *("sort", "argsort", "lexsort", "rankdata", "median_abs_deviation", "mad_std"),
    *("label", "lfilter", "sosfilt"),
}

#: The modules whose frames tracebacks leave out, and the code of functions made by `around`.
_WRAPPERS = "dask_coop.api.call."
_AROUND: set[CodeType] = set()

#: The documented name, which stays when this module moves.
logger: logging.Logger = logging.getLogger("dask_coop.api.public")

#: Takes the name of a function and the arguments of a call, and returns changed arguments.
Before = Callable[[str, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]

#: Changes the arguments of every call; set by ``install(chunks="cupy")`` to move them to GPUs.
before: Before | None = None


class _Recipe(NamedTuple):
    """The parts of a public function; `strict` builds its lazy results or raises `Refused`."""

    kind: Kind
    dask: bool
    strict: Callable[..., Any]
    function: Callable[..., Any]


_recipes: dict[Callable[..., Any], _Recipe] = {}

#: The bodies of functions that `named` returned.
_bodies: dict[Callable[..., Any], Callable[..., Any]] = {}


def public(
    kind: Kind, *, dask: bool = True, around: Callable[..., Any] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that makes a function of arrays, with lazy results, public.

    Parameters
    ----------
    kind : {"reduction", "selection", "scan", "histogram", "blockwise"}
        All but the last have a keyword `engine`, which is not passed to their bodies.
    dask : bool
        Whether Dask's function of the same name serves the chunks and dtypes that the function
        refuses. Its first parameter is then the array, or a sequence of arrays if Dask's function
        takes one. The call stays refused if Dask has no such function, or if Dask's function lacks
        a parameter whose argument differs from the default. Where Dask's function has no default,
        ours is passed. Reductions, selections and scans of bfloat16, which Dask would add up in
        bfloat16, are computed in float32.
    around : callable, optional
        A decorator of what takes the arguments of a call as the caller gave them.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        name = function.__name__
        strict: Callable[..., R] = partial(_build, function, kind, signature, dask)
        build = partial(_build_or_pass, strict, name, signature) if dask else strict

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            check_keywords(name, signature.parameters, kwargs)
            warm_if_wanted()
            if kind == "blockwise":
                return build(*args, **kwargs)
            engine = kwargs.pop("engine", "auto")
            if executor.is_decided() or _chosen(engine) == "auto":
                return build(*args, **kwargs)
            arguments = signature.bind(*args, **kwargs).arguments
            if kind != "scan" and arguments.get("out") is not None:
                raise ValueError(
                    "out takes lazy results, and engine='collective' returns values; leave out off"
                )
            result = _run_at_once(build, name, *args, **kwargs)
            computed: R = convert_parts(_in_memory, result) if kind == "scan" else _values(result)
            return computed

        of_all = with_labels(with_units(with_expressions(with_values(wrapper))), kind)
        if around is not None:
            of_all = around(of_all)
            _AROUND.add(of_all.__code__)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return of_all(*args, **kwargs)
            except Exception as error:
                error.__traceback__ = behind_wrappers(error.__traceback__)
                raise

        _recipes[call] = _Recipe(kind, dask, with_expressions(strict), function)
        return call

    return decorate


def behind_wrappers(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without this call's frame and those of the package's wrappers behind it.

    The last frame stays in any case.
    """
    behind = traceback and traceback.tb_next
    while (
        behind is not None
        and behind.tb_next is not None
        and (
            behind.tb_frame.f_globals.get("__name__", "").startswith(_WRAPPERS)
            or behind.tb_frame.f_code in _AROUND
        )
    ):
        behind = behind.tb_next
    return behind


def named(body: Callable[Concatenate[str, P], R]) -> Callable[P, R]:
    """Return a function that passes its name to `body`, before the arguments of a call."""
    function = _call_by_name(body, body)
    signature = inspect.signature(body)
    _, *parameters = signature.parameters.values()
    _describe(function, signature.replace(parameters=parameters), body.__doc__ or "")
    return function


def like(
    base: Callable[P, R], *, dask: bool | None = None
) -> Callable[[Callable[[], None]], Callable[P, R]]:
    """Return a decorator that makes another public function with the body of a `named` one.

    Parameters
    ----------
    base : callable
        A public function; the new one has the same parameters.
    dask : bool, optional
        As for `public`; by default as for `base`.

    Notes
    -----
    The decorated function supplies a name and a docstring. The sections Parameters, Returns and
    Raises come from `base` if the docstring lacks them.
    """
    recipe = _recipes[base]

    def decorate(name: Callable[[], None]) -> Callable[P, R]:
        function = _call_by_name(_bodies[recipe.function], name)
        docstring = _completed(name.__doc__ or "", base)
        _describe(function, inspect.signature(base), docstring)
        return public(recipe.kind, dask=recipe.dask if dask is None else dask)(function)

    return decorate


def _call_by_name(
    body: Callable[Concatenate[str, P], R], named_as: Callable[..., Any]
) -> Callable[P, R]:
    @wraps(named_as)
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        return body(named_as.__name__, *args, **kwargs)

    _bodies[function] = body
    return function


def _describe(function: Any, signature: inspect.Signature, docstring: str) -> None:
    function.__signature__, function.__doc__ = signature, docstring
    annotations = {name: p.annotation for name, p in signature.parameters.items()}
    function.__annotations__ = annotations | {"return": signature.return_annotation}


def _completed(docstring: str, base: Callable[..., Any]) -> str:
    """Return a docstring, with missing sections on parameters, results and errors from `base`."""
    titles = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
    summary, *parts = titles.split(inspect.cleandoc(docstring))
    _, *inherited = titles.split(inspect.getdoc(base) or "")
    texts = dict(zip(inherited[::2], inherited[1::2], strict=True))
    texts = {title: texts[title] for title in ("Parameters", "Returns", "Raises")}
    texts["See Also"] = base.__name__
    texts |= dict(zip(parts[::2], parts[1::2], strict=True))
    sections = (f"{title}\n{'-' * len(title)}\n{text.strip()}" for title, text in texts.items())
    return "\n\n".join([summary.strip(), *sections, ""])


def _chosen(engine: Any) -> str:
    configured = config.get("coop.engine", *ENGINES)
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    return str(configured if engine == "auto" else engine)


def _run_at_once(build: Callable[..., R], name: str, /, *args: Any, **kwargs: Any) -> R:
    """Run the public function `name` at once, with messages instead of tasks.

    If that is not possible, build its graph, if ``coop.fallback`` allows that.
    """
    # Importing distributed is slow, and only needed here.
    from dask_coop.cluster.futures import client_of
    from dask_coop.cluster.monitor import fell_back
    from dask_coop.cluster.private import relying

    try:
        with relying():
            from dask_coop.cluster.client import Collective
        with executor.running(Collective(name)):
            return build(*args, **kwargs)
    except Declined as reason:
        # Keep only the message: the exception's frames keep futures alive.
        cause, is_serious = str(reason), isinstance(reason, Silent | Incompatible)
    collections = filter(is_dask_collection, (*args, *kwargs.values()))
    fell_back(client_of([*collections]), name, cause)
    # Warn everybody of a graph that may wait for minutes, and of an incompatible release.
    level = logging.WARNING if is_serious else logging.INFO
    fall_back(logger, name, "runs as a graph", cause, Declined, level)
    with executor.running(None):
        return build(*args, **kwargs)


def _in_memory(x: Any) -> Any:
    """Return an array with its chunks computed and kept on the workers."""
    from distributed import futures_of

    from dask_coop.cluster.futures import client_of, is_persisted, wait

    if is_persisted(x):
        return x
    client = client_of([x])
    x = x.persist() if client is None else client.persist(x)
    futures = futures_of(x)
    wait(futures)
    if failed := next((future for future in futures if future.status == "error"), None):
        error, traceback = failed.exception(), failed.traceback()
        # Drop our references: the client keeps the exception, and its frames would keep the futures
        # and all chunks alive.
        del x, futures, failed
        raise error.with_traceback(traceback)
    return x


def _values(result: Any) -> Any:
    """Return a result, or a tuple or list of results, with lazy arrays computed on the host."""
    lazy: list[Any] = []
    convert_parts(lambda part: lazy.append(part) if is_dask_collection(part) else None, result)
    if not lazy:
        return result
    from dask_coop.cluster.futures import client_of

    computed = iter(compute(*map(_to_host, lazy), scheduler=client_of(lazy)))
    return convert_parts(lambda part: next(computed) if is_dask_collection(part) else part, result)


def _to_host(x: Any) -> Any:
    meta = getattr(x, "_meta", None)
    if meta is None or not type(meta).__module__.startswith("cupy"):
        return x
    like = np.zeros((0,) * x.ndim, x.dtype)
    return x.map_blocks(copy_to_host, dtype=x.dtype, meta=like)


def strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that builds a public function's lazy results, or raises `Refused`."""
    # `install` puts it in the place of Dask's function, so it must not fall back to that.
    return _recipes[function].strict


def _build(
    function: Callable[..., R],
    kind: Kind,
    signature: inspect.Signature,
    dask: bool,
    /,
    *args: Any,
    **kwargs: Any,
) -> R:
    """Build the lazy result of a public function, or raise `Refused`."""
    build: Callable[..., R] = partial(call_with_graphs, function)
    first = next(iter(signature.parameters))
    args, kwargs = _taken(function.__name__, signature, args, kwargs)
    array = args[0] if args else kwargs.get(first)
    if isinstance(array, str | bytes) and first not in ("path", "url"):
        raise TypeError(
            f"{first} of {function.__name__} must be an array, got the {type(array).__name__} "
            f"{array!r}"
        )
    with counted(function.__name__, array):
        if dask and (meta := getattr(array, "_meta", None)) is not None:
            chunks.kind(meta, first)
        widens = dask and kind in ("reduction", "selection", "scan")
        if widens and str(getattr(array, "dtype", "")) == "bfloat16":
            arguments = signature.bind(*args, **kwargs).arguments
            widened: R = _in_float32(build, **arguments)
            return widened
        if kind != "blockwise" or function.__name__ in _JOINS:
            by_name = dict(zip(signature.parameters, args, strict=False)) | kwargs
            if by_name.get("out") is None:
                # Others that sort take many times the memory of their elements.
                ordered = function.__name__ == "sort"
                return _with_joined_chunks(build, args, kwargs, ordered)
        return build(*args, **kwargs)


def taking_arrays(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that is not public, but takes arrays as public ones do."""
    signature = inspect.signature(function)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        taken: Any = _taken("", signature, args, kwargs)
        return function(*taken[0], **taken[1])

    return with_expressions(call)


def _taken(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, read from files and moved to GPUs where it is so wished."""
    if is_inside():
        return args, kwargs
    if not da.array_expr_enabled():
        args, kwargs = _from_files(signature, args, kwargs)
    # Read it once, because another thread may uninstall it meanwhile.
    change = before
    return (args, kwargs) if change is None else change(name, args, kwargs)


def _from_files(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of a call with arrays whose files this library reads, where it can."""

    def convert(name: str, value: Any) -> Any:
        # The caller's own object takes the result.
        return value if name == "out" else convert_parts(_read, value)

    # More arguments than parameters are refused later.
    names = [*signature.parameters, *[""] * len(args)]
    read = tuple(map(convert, names, args))
    return read, {name: convert(name, value) for name, value in kwargs.items()}


def _read(value: Any) -> Any:
    return read_by_us(value) if type(value) is Array else value


def _with_joined_chunks(
    build: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], ordered: bool
) -> R:
    """Build a lazy result of arrays whose small chunks, in the memory of a GPU, are joined."""
    arrays: list[Any] = []
    convert_parts(
        lambda x: arrays.append(x) if type(x) is Array else None, [*args, *kwargs.values()]
    )
    of = None
    if executor.runner() is None and not kwargs.get("include_initial"):
        of = joined(arrays, ordered)
    if of is None:
        return build(*args, **kwargs)
    joins = of.arrays
    args, named = (
        convert_parts(lambda x: joins.get(id(x), x), values)
        for values in (args, [*kwargs.values()])
    )
    result = build(*args, **dict(zip(kwargs, named, strict=True)))
    whole: R = convert_parts(partial(split, of=of), result)
    return whole


def _build_or_pass(
    build: Callable[..., R], name: str, signature: inspect.Signature, /, *args: Any, **kwargs: Any
) -> R:
    """Build the result of the public function `name`, by Dask's function if ours refuses."""
    try:
        return build(*args, **kwargs)
    except Refused as refusal:
        arguments = signature.bind(*args, **kwargs).arguments
        first = next(iter(signature.parameters))
        array = arguments.pop(first)
        defaults = {key: p.default for key, p in signature.parameters.items() if key != first}
        others = {key: value for key, value in arguments.items() if value is not defaults[key]}
        result: R = _by_dask(name, array, others, defaults, refusal)
        return result


def _in_float32(
    function: Callable[..., Any], /, *, out: da.Array | None = None, dtype: Any = None, **given: Any
) -> Any:
    """Call a function of a bfloat16 array in float32, and round float32 results back to it."""
    first, array = next(iter(given.items()))
    narrow = array.dtype if dtype is None else np.dtype(dtype)
    given[first] = da.asanyarray(array).astype("f4")
    if narrow != array.dtype:
        return function(**given, dtype=dtype, out=out)

    def rounded(result: da.Array) -> da.Array:
        # Bool and index results stay as they are.
        return result.astype(narrow) if result.dtype == np.float32 else result

    result = function(**given)
    if isinstance(result, tuple):
        return type(result)(*map(rounded, result))
    return handle_out(out, rounded(result))


def _by_dask(
    name: str, array: Any, others: dict[str, Any], defaults: dict[str, Any], refusal: Refused
) -> Any:
    function = dasks(getattr(da, name, None) or getattr(da.linalg, name, None))
    if function is None:
        raise refusal
    parameters = inspect.signature(function).parameters
    if "kwargs" in parameters:
        # With query planning, functions that Dask does not implement have such a signature.
        raise RefusedByDask(
            f"{refusal}; Dask has no {name} either while array.query-planning is on"
        ) from refusal
    if unknown := others.keys() - parameters.keys():
        raise Refused(
            f"{refusal}; Dask's {name} would run instead, but has no argument {min(unknown)}"
        ) from refusal
    unset = {key for key, p in parameters.items() if p.default in (inspect.Parameter.empty, None)}
    others = {key: defaults[key] for key in unset & defaults.keys()} | others
    fall_back(logger, name, "is left to Dask's function", refusal, Refused)
    several = name == "histogramdd" and isinstance(array, list | tuple)
    x = tuple(map(da.asanyarray, array)) if several else _in_native_order(da.asanyarray(array))
    # Dask would declare a dtype in another byte order, but NumPy computes in the native one.
    if not np.dtype(others.get("dtype")).isnative:
        others["dtype"] = np.dtype(others["dtype"]).newbyteorder("=")
    try:
        with uncounted(), left_to_dask():
            result = function(x, **others)
    except np.exceptions.AxisError:
        raise  # its message says enough
    except (TypeError, ValueError, LookupError, AttributeError, NotImplementedError) as error:
        message = f"{type(error).__name__}: {error}"
        raise RefusedByDask(f"{refusal}. So it was left to Dask's {name}: {message}") from error
    if name in HISTOGRAMS:
        result = HISTOGRAMS[name](*result)
    inputs = x, [value for key, value in others.items() if key != "out"]
    remember(name, str(refusal), result, inputs)
    count(name, array, "Dask", str(refusal))
    return result


def _in_native_order(x: da.Array) -> da.Array:
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))

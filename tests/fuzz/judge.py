"""Whether a case holds: its results against what is expected, and against what they promised."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.local import get_sync

import dask_coop as dc
from dask_coop.algebra.strategies import AUTO
from dask_coop.chunks.numpy.loop_table import WORTH_COMPILING
from fuzz import engines
from fuzz.case import Array, Case, Operand, show
from fuzz.exact import Expected
from fuzz.families import FAMILIES


@dataclass(frozen=True)
class Failure:
    """How a case does not hold.

    Attributes
    ----------
    kind : str
        "raises", "accepts" (what NumPy refuses), "type", "dtype", "shape", "chunks", "mask",
        "values", "bits" (a reproducible result that differs) or "keys".
    details : str
    """

    kind: str
    details: str


def judge(
    case: Case,
    xp: ModuleType,
    engine: str = "graph",
    ran: Callable[[str], None] = lambda engine: None,
) -> Failure | None:
    """Return how a case fails on chunks of `xp`'s kind, or None.

    Parameters
    ----------
    case : Case
    xp : module
    engine : str
        One of `engines.ENGINES`.
    ran : callable
        Is given the engine that has run it: the graph, where a collective declines.

    Raises
    ------
    ImportError
        If this machine lacks a library that the case needs.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings(), _thresholds(case.compiled):
        warnings.simplefilter("ignore")
        with case.setting(xp):
            return _judge(case, xp, engine, ran)


def _judge(case: Case, xp: ModuleType, engine: str, ran: Callable[[str], None]) -> Failure | None:
    refusal: Exception | None = None
    try:
        expected = FAMILIES[case.family].expect(case)
    except Exception as error:
        expected, refusal = [], error
    try:
        lazy, engine = engines.call(case, xp, engine)
        ran(engine)
        blocks = _together(lazy, engines.scheduler(engine))
        kinds = [_kind(wanted, xp) for wanted in expected] or [None] * len(lazy)
        found = [_compute(*both, xp) for both in zip(blocks, kinds, strict=True)]
    except ImportError:
        raise
    except Exception as error:
        if refusal:
            return None
        if case.strategy is not None and "set coop.strategy." in str(error):
            # The strategy is not for this case.
            return judge(replace(case, strategy=(case.strategy[0], AUTO)), xp, engine, ran)
        if any(wanted.refusable for wanted in expected):
            return _raises_too(case, xp)
        return Failure(f"raises {type(error).__name__}", _first_line(error))
    if refusal:
        # On CuPy chunks Dask's own function, to which it was left, takes more than NumPy's.
        if case.installed and dc.explain(lazy[0])[-1].served_by == "Dask":
            return None
        details = f"NumPy: {type(refusal).__name__}: {_first_line(refusal)}"
        return Failure("accepts", f"{details}; found {found[0][0]!r}")
    for number, ((actual, problem), wanted) in enumerate(zip(found, expected, strict=True)):
        failure = problem or _compare(lazy[number], actual, wanted)
        if failure:
            which = f"result {number}: " if len(found) > 1 else ""
            return replace(failure, details=which + failure.details)
    # Collectives give their results keys of their own, and so does Dask what is in memory as an
    # expression.
    own = engine == "collective" or (engine == "held" and da.array_expr_enabled())
    # Each call that writes has keys of its own.
    own = own or case.function == "to_zarr"
    return _bits(case, xp, found) or (None if own else _keys(case, xp, lazy, engine))


def _kind(wanted: Expected, xp: ModuleType) -> type:
    """Return the type of a result's blocks."""
    if wanted.mask is not None:
        return np.ma.MaskedArray
    return np.ndarray if wanted.host else xp.ndarray


def _raises_too(case: Case, xp: ModuleType) -> Failure | None:
    """Hold what is refused of chunks that loops are compiled for to be so of others, too."""
    try:
        with _thresholds(not case.compiled):
            _together(case.call(xp))
    except Exception:
        return None
    return Failure("raises", f"but not with compiled={not case.compiled}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _together(results: tuple[Any, ...], get: Callable[..., Any] = get_sync) -> list[Any]:
    """Return lazy results with their blocks, computed together as Dask optimises them."""
    lazy = [result for result in results if isinstance(result, da.Array)]
    optimised = dask.optimize(*lazy)
    graph: dict[Any, Any] = {}
    for collection in optimised:
        graph.update(collection.__dask_graph__())
    blocks = iter(get(graph, [collection.__dask_keys__() for collection in optimised]))
    return [(r, next(blocks)) if isinstance(r, da.Array) else (r, None) for r in results]


def _compute(result: Any, kind: type | None, xp: ModuleType) -> tuple[Any, Failure | None]:
    """Return a result as NumPy's, and where its blocks are not what the lazy array promised."""
    kind = type(result[0]._meta) if kind is None and result[1] is not None else kind
    lazy, blocks = result
    if blocks is None:
        return np.asarray(lazy), None
    problem = None
    if type(lazy._meta) is not kind:
        problem = Failure("type", f"the meta is {type(lazy._meta).__name__}")
    if lazy._meta.dtype != lazy.dtype:
        problem = Failure("dtype", f"the meta is {lazy._meta.dtype}, the array {lazy.dtype}")
    blocks = blocks[0] if lazy.ndim == 0 else blocks

    def join(part: Any, depth: int, index: tuple[int, ...]) -> Any:
        nonlocal problem
        if depth < lazy.ndim:
            parts = [join(p, depth + 1, (*index, i)) for i, p in enumerate(part)]
            return (np.ma if kind is np.ma.MaskedArray else np).concatenate(parts, depth)
        if part is np.ma.masked and kind is np.ma.MaskedArray:
            return np.ma.masked_all((), lazy.dtype)
        # Blocks of a masked array of which nothing is masked may be plain.
        plain = np.ndarray if kind is np.ma.MaskedArray else kind
        if type(part) not in (kind, plain) and not (xp is np and isinstance(part, np.generic)):
            problem = Failure("type", f"block {index} is of {type(part).__name__}")
            return np.asarray(part)
        if part.dtype != lazy.dtype:
            problem = Failure("dtype", f"declared {lazy.dtype.str}, computed {part.dtype.str}")
        sizes = [lazy.chunks[d][i] for d, i in enumerate(index)]
        if any(n == n and n != m for n, m in zip(sizes, part.shape, strict=True)):
            problem = Failure("chunks", f"block {index} of {tuple(sizes)} has shape {part.shape}")
        return part if isinstance(part, np.ndarray | np.generic) else xp.asnumpy(part)

    try:
        joined = join(blocks, 0, ())
        return joined if np.ma.isMaskedArray(joined) else np.asarray(joined), problem
    except ValueError as error:
        return None, problem or Failure("shape", f"the blocks do not fit: {error}")


def _compare(lazy: Any, actual: Any, wanted: Expected) -> Failure | None:
    dtype = actual.dtype.newbyteorder("=")
    if dtype != wanted.dtype:
        return Failure("dtype", f"{dtype}, expected {wanted.dtype}")
    if actual.shape != wanted.value.shape:
        return Failure("shape", f"{actual.shape}, expected {wanted.value.shape}")
    is_lazy = isinstance(lazy, da.Array)
    if is_lazy and wanted.chunks is not None and lazy.chunks != wanted.chunks:
        return Failure("chunks", f"{lazy.chunks}, expected {wanted.chunks}")
    if wanted.mask is None:
        wrong = np.asarray(wanted.differs(actual))
    else:
        masks = np.ma.getmaskarray(actual), np.broadcast_to(wanted.mask, actual.shape)
        if not np.array_equal(*masks):
            return Failure("mask", f"{masks[0].tolist()} is not {masks[1].tolist()}")
        wrong = np.asarray(wanted.differs(np.ma.getdata(actual))) & ~masks[1]
    if not wrong.any():
        return None
    places = np.argwhere(wrong)[:3]
    details = "; ".join(
        f"{list(map(int, at)) if len(at) else ''} {_show(actual[tuple(at)])} is not "
        f"{_show(wanted.value[tuple(at)].astype(wanted.dtype))}"
        for at in places
    )
    more = f" ({int(wrong.sum())} of {wrong.size})" if wrong.size > 1 else ""
    return Failure("values", details + more)


def _show(value: Any) -> str:
    return show(value[()] if isinstance(value, np.ndarray) else value)


def _bits(case: Case, xp: ModuleType, found: list[Any]) -> Failure | None:
    """Hold a reproducible result to that of one chunk."""
    if not case.option("reproducible"):
        return None
    actual = found[0][0]
    same, _ = _compute(_together(whole(case).call(xp))[0], None, xp)
    actual, same = (np.ma.filled(result, 0) for result in (actual, same))
    if _bits_of(actual) != _bits_of(same):
        return Failure("bits", f"{actual!r} but of one chunk {same!r}")
    return None


def _bits_of(x: Array) -> bytes:
    """Return the bits of numbers, of which NaN is one."""
    parts = (x.real, x.imag) if x.dtype.kind == "c" else (x,)
    nan = (np.where(part != part, np.array("nan", part.dtype), part) for part in parts)
    return b"".join(part.tobytes() for part in nan) if x.dtype.kind in "fc" else x.tobytes()


def whole(case: Case) -> Case:
    """Return the case of arrays in one chunk."""

    def one(operand: Operand) -> Operand:
        return replace(operand, chunks=tuple((n,) for n in operand.array.shape))

    return replace(
        case,
        inputs=tuple(map(one, case.inputs)),
        operands={name: one(operand) for name, operand in case.operands.items()},
    )


def _keys(case: Case, xp: ModuleType, lazy: tuple[Any, ...], engine: str) -> Failure | None:
    """Hold the same call to the same keys."""
    again, _ = engines.call(case, xp, engine)
    for first, second in zip(lazy, again, strict=True):
        if isinstance(first, da.Array) and first.name != second.name:
            return Failure("keys", f"{first.name}, then {second.name}")
    return None


_USUAL = dict(WORTH_COMPILING)


@contextmanager
def _thresholds(compiled: bool) -> Iterator[None]:
    """Have chunks of any size be worth compiling loops for, or those that usually are."""
    before = dict(WORTH_COMPILING)
    try:
        WORTH_COMPILING.update(dict.fromkeys(WORTH_COMPILING, 1) if compiled else _USUAL)
        yield
    finally:
        WORTH_COMPILING.update(before)

"""One case: call every contender, compare its result with the reference, and only then time it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .cases import HOST_ELEMENTS, Case, Primitive
from .timers import CLUSTERED, HostTimer, Samples, Sets, Timer, inputs

Row = dict[str, Any]

#: The memory of a case besides its sets, in inputs: results, the reference and its temporaries.
SPARE = 9


class DeviceLostError(RuntimeError):
    """A kernel broke the GPU's context: later results in this process do not count."""


#: The name of this library among the contenders.
OURS = "dask_coop"


def measure(timer: Timer, case: Case, primitive: Primitive, floor: float | None) -> Iterator[Row]:
    """Yield a row for every contender, with a time or the reason why it was not timed.

    The ``status`` of a row is "ok", "missing" (no such function or library, see ``note``), "wrong"
    or "error".
    """
    hidden = ("axis", "arrays", "written", "slots", "clustered")
    about = {key: value for key, value in vars(case).items() if key not in hidden}
    about |= {"bytes": case.arrays * case.nbytes + case.written, "floor_ms": floor}
    timer.release()
    try:
        if (3 * case.arrays + SPARE) * case.nbytes > timer.memory:
            raise MemoryError("too large for the memory of this machine")
        sets = inputs(timer, case)
        want = reference(timer, case, primitive, sets[0])
    except Exception as error:
        yield {**about, "contender": OURS, "status": "error", "note": _line(error)}
        return
    names = [name for name in timer.names if name in primitive.CONTENDERS[case.work]]
    outcomes = {name: prepare(timer, case, primitive, name, sets, want) for name in names}
    timed = times_in_turn(timer, case, outcomes)
    for name, outcome in outcomes.items():
        row = timed[name] if isinstance(outcome, Ready) else outcome
        yield {**about, "contender": name, **row}


def reference(timer: Timer, case: Case, primitive: Primitive, arrays: tuple[Any, ...]) -> Any:
    """Return the reference: by NumPy, or in wider types where that takes too long."""
    if isinstance(timer, HostTimer):
        key = primitive, replace(case, chunks=0)
        return timer.keep(
            "reference", key, lambda: settle(np, primitive.reference(case, np, *arrays))
        )
    if case.size > HOST_ELEMENTS:
        return primitive.reference(case, timer.xp, *arrays)
    on_host = (x if isinstance(x, np.ndarray) else x.get() for x in arrays)
    return settle(timer.xp, primitive.reference(case, np, *on_host))


class Ready(NamedTuple):
    """A contender with a right result: its call, its sets, and our result of the first set."""

    call: Any
    sets: Sets
    got: tuple[Any, ...]


def prepare(
    timer: Timer, case: Case, primitive: Primitive, name: str, sets: Sets, want: Any
) -> Ready | Row:
    """Return the contender `name` ready to be timed, or a row with the reason why not."""
    try:
        call = primitive.CONTENDERS[case.work][name](timer.contenders, case)
        adopted = adopt(timer, case, name, sets)
    except (ImportError, AttributeError) as error:
        return {"status": "missing", "note": "not built" if name == OURS else _line(error)}
    except Exception as error:
        return {"status": "error", "note": _line(error)}
    try:
        got = settle(timer.xp, call(*adopted[0]))
        off = primitive.distance(case, name == OURS, got, want, *sets[0])
    except Exception as error:
        return _failed(timer, case, name, error)
    if not off <= 1:
        return {"status": "wrong", "note": f"off by {off:.2g} tolerances"}
    # The results of others would only use memory.
    return Ready(call, adopted, got if name == OURS else ())


def adopt(timer: Timer, case: Case, name: str, sets: Sets) -> Sets:
    """Return the sets in the form of the library `name`; Dask copies chunks, which all share."""
    one = partial(timer.contenders.adopt, name, chunks=case.chunks, clustered=case.clustered)
    if not isinstance(timer, HostTimer) or not case.chunks:
        return [tuple(map(one, arrays)) for arrays in sets]
    adopted: Sets = timer.keep(
        f"in {case.chunks} chunks",
        (case.inputs, case.clustered),
        lambda: [tuple(map(one, x)) for x in sets],
    )
    return adopted


def times_in_turn(timer: Timer, case: Case, outcomes: Mapping[str, Ready | Row]) -> dict[str, Row]:
    """Return the times of the contenders that are ready, with samples taken in turn.

    A GPU may work a tenth slower for a second; taking turns exposes all contenders to it alike. No
    contender begins with the inputs that the one before has just read.
    """
    rows: dict[str, Row] = {}
    samples: dict[str, Samples] = {}
    ready = {name: one for name, one in outcomes.items() if isinstance(one, Ready)}
    for turn, (name, one) in enumerate(ready.items()):
        try:
            least = CLUSTERED if case.clustered else 1
            samples[name] = Samples(timer, one.call, one.sets, turn, least)
        except Exception as error:
            rows[name] = _failed(timer, case, name, error)
    while any(taken.left for taken in samples.values()):
        for name, taken in list(samples.items()):
            try:
                if taken.left:
                    taken.sample()
            except Exception as error:
                rows[name] = _failed(timer, case, name, error)
                del samples[name]
    for name, taken in samples.items():
        rows[name] = {"status": "ok", **taken.result()}
        if name == OURS and not case.chunks and len(rows[name]["samples_ms"]) > 1:
            again = settle(timer.xp, ready[name].call(*ready[name].sets[0]))
            rows[name]["repeatable"] = same_bits(ready[name].got, again)
    return rows


def _failed(timer: Timer, case: Case, name: str, error: Exception) -> Row:
    """Return the row of a contender that raised an error; raise if the GPU is lost."""
    try:
        timer.wait()
    except Exception as lost:
        raise DeviceLostError(f"{name} broke the GPU on {case}: {_line(error)}") from lost
    return {"status": "error", "note": _line(error)}


def floor(timer: Timer, case: Case, ceilings: dict[str, Row]) -> float | None:
    """Return the least milliseconds for the bytes of `case`, or for its instructions.

    Return None for whole calls: they use several threads, but memory was measured with one.
    """
    if case.chunks:
        return None
    if case.slots:
        rate = timer.slots_per_ms()
        return case.slots / rate if rate else None
    ceiling = ceilings["copy" if case.written else "read"]
    return float((case.arrays * case.nbytes + case.written) * ceiling["ms"] / ceiling["bytes"])


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0]:.120}"


def settle(xp: Any, result: Any) -> tuple[Any, ...]:
    """Return a contender's result as a tuple of arrays of `xp`."""
    if hasattr(result, "arrays"):
        result = result.arrays()
    parts = result if isinstance(result, tuple) else (result,)
    return tuple(xp.asarray(part) for part in parts)


def same_bits(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Return whether two results of `settle` have equal bits, except in NaN."""
    return all(bool(np.all(x == y)) for x, y in zip(a, b, strict=True))

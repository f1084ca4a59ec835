"""Reductions: of all elements, of rows, of columns, and several statistics in one read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np

from dask_coop.algebra import monoids
from dask_coop.algebra import reproducible as digits
from dask_coop.algebra.operation import bind, reproducible

from .cases import DATA, DTYPES, Array, Case, Maker, Scale, apart

#: The names of the works' rows in dask_coop.monoids, where they differ.
MONOIDS = {"describe": "MOMENTS", "reproducible": "SUM"}

#: PyTorch's names, where they differ.
TORCH = {"min": "amin"}


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases."""
    for dtype in DTYPES:
        for n in scale.sizes:
            for work in ("sum", "min", "argmax", "var"):
                yield Case("reduce", work, dtype, (n,))
            if dtype == "float32":
                yield Case("reduce", "describe", dtype, (n,))
    for data in DATA[1:]:
        for work in ("sum", "argmax", "var"):
            yield Case("reduce", work, "float32", (scale.sizes[-1],), data)
    for axis in (0, 1):
        yield Case("reduce", f"sum axis {axis}", "float32", (scale.side,) * 2, axis=axis)
    for dtype in ("float32", "float64"):
        yield Case("reduce", "reproducible sum", dtype, (scale.sizes[-1],))


@dataclass(frozen=True)
class States:
    """The states to which a chunk was lifted: bytes on a GPU, fields on the host."""

    op: Any
    name: str
    states: Any

    def arrays(self) -> tuple[Array, ...]:
        """Return the results, on the host."""
        names, fields = [field.name for field in self.op.monoid.fields], self.states
        if not isinstance(fields, tuple):
            from dask_coop.chunks.cupy import programs_list

            records = fields.get().view(programs_list.layout(self.op))
            records = records[0] if len(records) == 1 else records
            fields = tuple(records[name] for name in names)
        if self.name == "reproducible":
            return (digits.total(fields, np.dtype("f8")),)
        if self.name not in ("var", "describe"):
            return (fields[-1],)  # the index follows the greatest value
        state = dict(zip(names, fields, strict=True))
        var = state["m2"] / state["count"]
        return (var,) if self.name == "var" else (*fields[:6], var, np.sqrt(var))


def ours(contenders: Any, case: Case) -> Callable[[Array], States]:
    """Return the lift of a chunk, whose states stay where the chunk is."""
    name, dtype = case.work.split()[0], np.dtype(case.dtype)
    monoid = getattr(monoids, MONOIDS.get(name, name.upper()))
    op = bind(monoid, dtype, monoid.output(dtype), name)
    op = reproducible(op) if name == "reproducible" else op
    backend = contenders.ours("reduce")
    if not contenders.gpu:
        axes = tuple(range(len(case.shape))) if case.axis is None else (case.axis,)
        return lambda x: States(op, name, backend.lift(op, x, axes))
    reduce_lines, lines = backend.reduce_lines, case.lines
    return lambda x: States(op, name, reduce_lines(op, x, lines))


def torch(contenders: Any, case: Case) -> Callable[[Array], Array]:
    """Return PyTorch's reduction."""
    name = case.work.split()[0]
    extra: dict[str, Any] = {"correction": 0} if name == "var" else {}
    if case.axis is not None:
        extra["dim"] = case.axis
    return partial(getattr(contenders.torch, TORCH.get(name, name)), **extra)


def cub(contenders: Any, case: Case) -> Callable[[Array], Array]:
    """Return CUB's reduction; its argmax writes the value behind the index."""
    name = case.work
    out = contenders.cupy.zeros(2, "i8" if name == "argmax" else case.dtype)
    run = contenders.cub(name, case, out)

    def call(x: Array) -> Array:
        return run(x)[0]

    return call


def dask(contenders: Any, case: Case) -> Callable[[Array], Array]:
    """Return Dask's reduction, computed."""
    function = getattr(contenders.da, case.work.split()[0])
    return lambda x: function(x, axis=case.axis).compute()


def like_numpy(library: str) -> Maker:
    """Return a maker of the reduction of NumPy or CuPy, which have the same names."""
    return lambda contenders, case: partial(
        getattr(getattr(contenders, library), case.work.split()[0]), axis=case.axis
    )


def describe_by_calls(library: str) -> Maker:
    """Return a maker of eight statistics by as many calls."""

    def make(contenders: Any, case: Case) -> Callable[[Array], Any]:
        xp = getattr(contenders, library)
        low, high = (xp.amin, xp.amax)
        var, std = xp.var, xp.std
        if library == "torch":
            var, std = partial(var, correction=0), partial(std, correction=0)

        def call(x: Array) -> Any:
            nans = xp.isnan(x).sum()
            return case.size - nans, nans, low(x), high(x), xp.sum(x), xp.mean(x), var(x), std(x)

        return call

    return make


_ALL: dict[str, Maker] = {
    "dask_coop": ours,
    "CuPy": like_numpy("cupy"),
    "PyTorch": torch,
    "NumPy": like_numpy("numpy"),
    "Dask": dask,
}
CONTENDERS: dict[str, dict[str, Maker]] = {
    "reproducible sum": {"dask_coop": ours},
    "sum": {**_ALL, "CUB": cub},
    "min": {**_ALL, "CUB": cub},
    "argmax": {**_ALL, "CUB": cub},
    "var": _ALL,
    "sum axis 0": _ALL,
    "sum axis 1": _ALL,
    "describe": {
        "dask_coop": ours,
        "CuPy": describe_by_calls("cupy"),
        "PyTorch": describe_by_calls("torch"),
        "NumPy": describe_by_calls("numpy"),
    },
}


def reference(case: Case, xp: Any, x: Array) -> tuple[Any, ...]:
    """Return the results in float64, integers exact; for argmax the greatest value."""
    name = case.work.split()[0]
    wide = "i8" if x.dtype.kind == "i" else "f8"
    low, high, total = x.min(case.axis), x.max(case.axis), x.sum(case.axis, dtype=wide)
    simple = {"sum": total, "reproducible": total, "min": low, "argmax": high}
    if name in simple:
        return (simple[name],)
    mean = x.mean(case.axis, dtype="f8")
    deviation = xp.subtract(x, mean, dtype="f8")
    deviation *= deviation
    var = deviation.mean(case.axis)
    if name == "var":
        return (var,)
    return xp.asarray(case.size), xp.asarray(0), low, high, total, mean, var, xp.sqrt(var)


def distance(
    case: Case, strict: bool, got: tuple[Any, ...], want: tuple[Any, ...], x: Array
) -> float:
    """Return the error of the worst result; any index of the greatest value is right."""
    if case.work == "argmax":
        return 0.0 if bool(x[int(got[0])] == want[0]) else inf
    return max(apart(case, strict, *pair) for pair in zip(got, want, strict=True))

"""Cases of to_hist: histograms of boost-histogram, held to one fill of the whole arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boost_histogram as bh
import dask
import numpy as np

import dask_coop as dc
from fuzz import draw
from fuzz.case import Array, Case, Operand
from fuzz.exact import Expected

#: Axes, as Python of `bh`, and the dtypes of samples that they take.
AXES = {
    "bh.axis.Regular(5, -2, 3)": ["f8", "f4", "i2"],
    "bh.axis.Regular(4, 1, 100, transform=bh.axis.transform.log)": ["f8", "u1"],
    "bh.axis.Regular(4, 0, 3, transform=bh.axis.transform.Pow(2))": ["f8"],
    "bh.axis.Regular(3, -1, 1.3, circular=True)": ["f8", "f4", "i4"],
    "bh.axis.Regular(4, 0.125, 1.125, growth=True)": ["f8", "i2"],
    "bh.axis.Variable([-1, 0, 0.25, 4])": ["f8", "f4", "i8"],
    "bh.axis.Variable([-1, 0.5, 2], circular=True)": ["f8"],
    "bh.axis.Integer(-2, 3)": ["i8", "u1", "?"],
    "bh.axis.Integer(0, 1, growth=True)": ["i4"],
    "bh.axis.Integer(0, 3, circular=True)": ["i8"],
    "bh.axis.IntCategory([3, -2, 0])": ["i4", "u2"],
    "bh.axis.IntCategory([], growth=True)": ["i8"],
    "bh.axis.Boolean()": ["?"],
    "bh.axis.StrCategory(['b', 'a'])": ["U1"],
    "bh.axis.StrCategory(['b'], growth=True)": ["U1"],
}
STORAGES = ["Double", "Int64", "Unlimited", "Weight", "Mean", "WeightedMean"]


@dataclass(frozen=True)
class Fill(Case):
    """A call whose options ``axes`` and ``storage`` are Python of what is filled."""

    @property
    def _empty(self) -> Any:
        axes = eval(f"[{self.option('axes')}]", {"bh": bh})
        return bh.Histogram(*axes, storage=getattr(bh.storage, self.option("storage"))())

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Return whether a fill of the whole arrays is the same.

        Raises
        ------
        AssertionError
            With both.
        """
        lazy = [x.build(np) for x in self.inputs]
        named = {name: x.build(np) for name, x in self.operands.items()}
        # It is filled at once by collectives.
        (found,) = dask.compute(dc.to_hist(lazy, self._empty, **named), scheduler="sync")
        expected = self._filled()
        views = [np.asarray(h.view(flow=True)) for h in (found, expected)]
        fields = views[0].dtype.names or [...]
        if [*found.axes] != [*expected.axes] or not all(
            np.allclose(*(view[field] for view in views), rtol=1e-10, atol=1e-10, equal_nan=True)
            for field in fields
        ):
            raise AssertionError(f"{expected!r} -> {found!r}: {views[1]} -> {views[0]}")
        return (np.array(True),)

    def _filled(self) -> Any:
        keys = {"weights": "weight", "values": "sample"}
        arrays = [x.array for x in self.inputs]
        options = {keys[name]: x.array for name, x in self.operands.items()}
        filled: Any = self._empty.fill(*arrays, **options)
        return filled

    def code(self, xp: Any) -> str:
        """Return the call as a line of Python."""
        samples = ", ".join(x.code(np) for x in self.inputs)
        named = "".join(f", {name}={x.code(np)}" for name, x in self.operands.items())
        empty = (
            f"bh.Histogram({self.option('axes')}, storage=bh.storage.{self.option('storage')}())"
        )
        return f"import boost_histogram as bh; dc.to_hist([{samples}], {empty}{named})"


def draw_fill(rng: draw.Generator) -> Case:
    """Draw one to three axes, a storage, and samples with what it takes besides."""
    axes = [draw.pick(rng, [*AXES]) for _ in range(draw.pick(rng, [1, 1, 2, 3]))]
    n = int(rng.integers(1, draw.pick(rng, [9, 90])))
    chunks = (tuple(size for size in draw.cuts(rng, n, 6) if size),)
    # boost-histogram loses what is not finite where an axis grows.
    nans = 0 if any("Regular" in axis and "growth" in axis for axis in axes) else 0.05
    inputs = tuple(
        Operand(_samples(rng, draw.pick(rng, AXES[a]), n, nans), chunks, "a") for a in axes
    )
    storage = draw.pick(rng, STORAGES)
    operands = {}
    if draw.chance(rng, 0.4) or storage == "WeightedMean":
        weights = rng.integers(1, 5, n).astype("i4" if storage == "Int64" else "f8")
        operands["weights"] = Operand(weights, chunks, "a")
    if storage.endswith("Mean"):
        operands["values"] = Operand(rng.integers(-9, 9, n).astype("f8"), chunks, "a")
    options = {"axes": ", ".join(axes), "storage": storage}
    return Fill("fill", "to_hist", inputs, operands, options)


def _samples(rng: draw.Generator, dtype: str, n: int, nans: float) -> Array:
    if dtype[0] == "U":
        return np.array([*"abcd"])[rng.integers(4, size=n)]
    # Halves, on edges and between; not on those of axes that grow, which are roundings off.
    low = 0 if dtype[0] in "u?" else -8
    x = rng.integers(low, 2 if dtype == "?" else 9, n)
    if dtype[0] != "f":
        return x.astype(dtype)
    halves = (x / 2).astype(dtype)
    halves[rng.random(n) < nans] = np.nan
    return halves


def expect_fill(case: Case) -> list[Expected]:
    """Return that both are the same."""
    return [Expected(np.array(True), host=True)]

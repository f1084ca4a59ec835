"""Aims of this library at the largest size: a time beside that of a peer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .cases import LARGE

Row = dict[str, Any]

#: As fast as another, within the variation of times.
SAME = 0.97


@dataclass(frozen=True)
class Target:
    """One aim.

    Attributes
    ----------
    label : str
        The subject of the aim.
    work, dtype, data, bins
        Those of the case.
    size : int
        The number of elements, if not the largest.
    least : float
        The least ratio of the other time to this library's.
    than : tuple of str
        The peers whose fastest is the other time; "uniform" stands for this library's own time on
        uniform data, "sum" for its time of a plain sum, "floor" for the floor.
    nanoseconds, gigabytes : float
        Instead of a peer's time: a time for each element, or a rate of the input in GB/s.
    """

    label: str
    least: float
    than: tuple[str, ...]
    work: str
    dtype: str = "float32"
    data: str = "uniform"
    bins: int = 0
    size: int = 0
    nanoseconds: float = 0
    gigabytes: float = 0

    @property
    def wanted(self) -> str:
        """The aim in words."""
        if self.nanoseconds:
            return f"at most {self.nanoseconds:g} ns an element"
        if self.gigabytes:
            return f"{self.gigabytes:g} GB/s"
        than = {
            "uniform": "its own time of uniform data",
            "sum": "its own time of a plain sum",
            "floor": "the floor",
        }
        return f"{self.least:g} of {', '.join(than.get(name, name) for name in self.than)}"

    def find(
        self, lines: list[Row], largest: int, data: str | None = None, work: str | None = None
    ) -> Row | None:
        """Return the line of the case among those of `benchmarks.report.merged`."""
        wanted = (work or self.work, self.dtype, data or self.data, self.bins)
        for line in lines:
            found = (line["work"], line["dtype"], line["data"], line["bins"])
            size = self.size or largest
            if found == wanted and (len(line["shape"]) > 1 or line["shape"][0] == size):
                return line
        return None

    def reached(self, line: Row, lines: list[Row], largest: int) -> float | None:
        """Return the ratio, or None if one of the two times is missing."""
        ours = line["times"].get("dask_coop")
        if fixed := self._fixed(line):
            return fixed / ours if ours else None
        times = {**line["times"], "floor": line["floor_ms"]}
        if uniform := self.find(lines, largest, "uniform"):
            times["uniform"] = uniform["times"].get("dask_coop")
        if plain := self.find(lines, largest, work="sum"):
            times["sum"] = plain["times"].get("dask_coop")
        others = [times[name] for name in self.than if times.get(name)]
        return min(others) / ours if ours and others else None

    def _fixed(self, line: Row) -> float:
        """Return the wanted milliseconds, if these do not depend on others, or 0."""
        if self.nanoseconds:
            return math.prod(line["shape"]) * self.nanoseconds / 1e6
        return read(line) / self.gigabytes / 1e6 if self.gigabytes else 0.0


def kinds(found: Row) -> tuple[str, ...]:
    """Return the kinds of plots for a file of results."""
    return ("sizes", "bins") if found["machine"]["gpu"] else ("threads",)


def read(line: Row) -> float:
    """Return the bytes of the input of a line of one array."""
    return float(math.prod(line["shape"]) * np.dtype(line["dtype"]).itemsize)


def _targets() -> Iterator[Target]:
    for work in ("sum", "min", "argmax"):
        yield Target(work, 0.97, ("CUB", "CuPy"), work)
    yield Target("var", 1.2, ("PyTorch",), "var")
    yield Target("describe, 8 statistics", 5, ("CuPy", "PyTorch"), "describe")
    for dtype in ("float32", "float64"):
        yield Target(f"reproducible sum {dtype}", 0.67, ("sum",), "reproducible sum", dtype)
    for dtype in ("float32", "int32", "float64", "int64"):
        yield Target(f"scan {dtype}", 1, ("CUB",), "scan", dtype)
    yield Target("scan float32", 2.3, ("CuPy",), "scan")
    for power in (16, 18):
        for dtype in ("float32", "int32"):
            yield Target(f"scan {dtype}, 2^{power}", 0.77, ("CUB",), "scan", dtype, size=1 << power)
    yield Target("cumsum, axis 0", 10, ("PyTorch",), "cumsum axis 0")
    yield Target("cumsum, axis 1", 1.9, ("PyTorch",), "cumsum axis 1")
    for axis in (0, 1):
        yield Target(f"sum, axis {axis}", 0.97, ("PyTorch", "CuPy"), f"sum axis {axis}")
    counts = {256: 1, 2048: 11, 16384: 11, 49152: 11, 65536: 8, 1 << 18: 15, 1 << 20: 15}
    for bins, least in counts.items():
        than = ("PyTorch",) if bins == 65536 else ("CUB",)
        yield Target(f"histogram, {bins:,} bins", least, than, "histogram", bins=bins)
    for bins in counts:
        label = f"histogram, {bins:,} bins, all equal"
        yield Target(label, 0.8, ("uniform",), "histogram", data="constant", bins=bins)
    yield Target("weighted histogram, 2,048 bins", 3, ("CuPy",), "weighted histogram", bins=2048)
    yield Target("transposed copy", 3, ("PyTorch", "CuPy"), "transposed copy")
    yield Target("min_plus", 0.75, ("floor",), "min_plus")
    yield Target("int32 product", 3, ("CuPy",), "plus_times", "int32")


def _chunk_targets() -> Iterator[Target]:
    """Yield the targets for one NumPy chunk on one thread."""
    both, floats = ("fast-histogram", "boost-histogram"), ("float32", "float64")
    for dtype in floats:
        counted = partial(Target, work="histogram", dtype=dtype)
        label = f"histogram {dtype}"
        yield counted(f"{label}, 256 bins", 1.4, both[:1], bins=256)
        yield counted(f"{label}, 256 bins", 2, both[1:], bins=256)
        for bins in (4096, 65536):
            yield counted(f"{label}, {bins:,} bins", 1.2, both, bins=bins)
        work = "weighted histogram"
        yield Target(f"{work} {dtype}, 256 bins", 1.2, both, work, dtype, bins=256)
    yield Target("histogram2d, 100 x 100 bins", 1.5, both, "histogram2d", "float64")
    work = "histogram between 1,001 edges"
    yield Target(work, 2, ("NumPy", *both[1:]), work, "float64")
    for dtype, least in (("float32", 5), ("float64", 2.5)):
        for work in ("var", "std"):
            yield Target(f"{work} {dtype}", least, ("NumPy",), work, dtype)
    for data in ("uniform", "holes"):
        for work, least in (("nanvar", 3.5), ("nansum", 1.7), ("nanmean", 1.7)):
            label = f"{work}, a tenth NaN" if data == "holes" else work
            yield Target(label, least, ("bottleneck",), work, data=data)
    for dtype in floats:
        for work in ("sum", "mean", "min", "max", "argmin", "argmax"):
            yield Target(f"{work} {dtype}", SAME, ("NumPy",), work, dtype)
        nan_peers = ("NumPy", "bottleneck", "numbagg")
        yield Target(f"nanmax {dtype}", SAME, nan_peers, "nanmax", dtype)
    for dtype in ("float32", "bool"):
        yield Target(f"any {dtype}, nothing true", SAME, ("NumPy",), "any", dtype, "zeros")
    yield Target("describe", 1, (), "describe", nanoseconds=2.2)
    for dtype, least in (("float32", 1.5), ("float64", 1.4)):
        yield Target(f"cumsum {dtype}", least, ("NumPy",), "cumsum", dtype)
        yield Target(f"cummax {dtype}", 3, ("NumPy",), "cummax", dtype)
        for work in ("cumsum axis 0", "cummax axis 0"):
            yield Target(f"{work} {dtype}", 1.5, ("NumPy",), work, dtype)
    # A fifth of the time in which sums of logarithms were computed element by element.
    yield Target("logcumsumexp", 1, (), "logcumsumexp", "float64", nanoseconds=10)
    for dtype in floats:
        yield Target(f"reproducible sum {dtype}", 0.33, ("sum",), "reproducible sum", dtype)


def _whole_targets() -> Iterator[Target]:
    """Yield the targets for whole calls on Dask arrays of NumPy chunks."""
    rates = {"histogram of 256 bins": 20, "var": 55, "describe": 30, "nanmean": 55, "cumsum": 25}
    for work, rate in rates.items():
        large = partial(Target, work=f"{work}, 32 chunks", size=LARGE)
        yield large(f"{work}, 16 threads", 1, (), gigabytes=rate)
        yield large(f"{work}, 16 threads", 10, ("1 thread",))
    for chunks in (32, 128):
        for than, least in (("Dask", 2.5), ("Dask blelloch", 1.5)):
            work = f"cumsum, {chunks} chunks on a cluster"
            yield Target(work, least, (than,), work, "float64")


#: The targets of kernels on a GPU, and those without one.
TARGETS, HOST_TARGETS = tuple(_targets()), (*_chunk_targets(), *_whole_targets())

#: The most time of a whole call on NumPy chunks, relative to Dask's function of the same name.
LEAST_OF_DASK = 0.9

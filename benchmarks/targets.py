"""What is wanted of this library at the largest size: a time beside that of a peer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """One aim.

    Attributes
    ----------
    label : str
        What it is about.
    work, dtype, data, bins
        Those of the case.
    size : int
        The elements, where not the largest.
    least : float
        The least ratio of the other time to that of this library.
    than : tuple of str
        The peers whose fastest is the other time; "uniform" stands for this library's own time of
        uniform data, "sum" for that of a plain sum, "floor" for the floor.
    """

    label: str
    least: float
    than: tuple[str, ...]
    work: str
    dtype: str = "float32"
    data: str = "uniform"
    bins: int = 0
    size: int = 0

    @property
    def wanted(self) -> str:
        """The aim in words."""
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
        """Return the ratio, None where one of the two times is missing."""
        ours = line["times"].get("dask_coop")
        times = {**line["times"], "floor": line["floor_ms"]}
        if uniform := self.find(lines, largest, "uniform"):
            times["uniform"] = uniform["times"].get("dask_coop")
        if plain := self.find(lines, largest, work="sum"):
            times["sum"] = plain["times"].get("dask_coop")
        others = [times[name] for name in self.than if times.get(name)]
        return min(others) / ours if ours and others else None


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


def _host_targets() -> Iterator[Target]:
    for dtype in ("float32", "float64"):
        yield Target(f"reproducible sum {dtype}", 0.33, ("sum",), "reproducible sum", dtype)
    for work in ("sum()", "var()"):
        for dtype in ("float64", "float32"):
            yield Target(f"{work} {dtype}", 1, ("Dask",), work, dtype)
    for dtype in ("float64", "float32"):
        yield Target(f"histogram, {dtype}", 3, ("Dask",), "histogram(bins=100)", dtype)
    for chunks in (32, 128):
        for than, least in (("Dask", 2.5), ("Dask blelloch", 1.5)):
            work = f"cumsum, {chunks} chunks on a cluster"
            yield Target(work, least, (than,), work, "float64")


#: Of kernels on a GPU, and of whole calls on the host.
TARGETS, HOST_TARGETS = tuple(_targets()), tuple(_host_targets())

"""The examples, run as a reader would, and held to what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from heapq import heappop, heappush
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy

import dask_coop as dc

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> Any:
    """Return an example as a module."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def equalize() -> Any:
    """Return the function of the example that bears its name."""
    return load("equalize").equalize


@pytest.fixture(scope="module")
def town() -> Any:
    """Return the example of shortest paths."""
    return load("shortest_paths")


def picture(shape: tuple[int, ...] = (60, 80)) -> Any:
    return np.random.default_rng(0).poisson(90, shape).astype("u1")


def evenness(x: Any) -> float:
    """Return the greatest distance of the values' distribution from the even one."""
    shares = np.cumsum(np.bincount(x.ravel(), minlength=256)) / x.size
    return float(np.abs(shares - np.arange(1, 257) / 256).max())


@pytest.mark.parametrize("shape", [(60, 80), (20, 30, 3)])
def test_equalizing_is_numpy_s(equalize: Any, xp: ModuleType, shape: tuple[int, ...]) -> None:
    x = picture(shape)
    counts = np.bincount(x.ravel(), minlength=256)
    levels = np.rint(np.cumsum(counts) / x.size * 255).astype("u1")
    lazy = equalize(to_chunks(xp, x, 16), limit=np.inf)
    assert lazy.dtype == np.uint8
    np.testing.assert_array_equal(to_numpy(xp, lazy), levels[x])


def test_equalizing_evens_values_out_and_keeps_their_order(equalize: Any, xp: ModuleType) -> None:
    x = picture()
    without = to_numpy(xp, equalize(to_chunks(xp, x, 16), limit=np.inf))
    limited = to_numpy(xp, equalize(to_chunks(xp, x, 16)))
    assert evenness(without) < 0.05
    assert evenness(without) < evenness(limited) < evenness(x)
    for found in (without, limited):
        order = np.argsort(x, axis=None, kind="stable")
        assert (np.diff(found.ravel()[order].astype(int)) >= 0).all()


def test_equalizing_floats_gives_the_range_from_0_to_1(equalize: Any, xp: ModuleType) -> None:
    x = np.random.default_rng(0).normal(size=(60, 80))
    found = to_numpy(xp, equalize(to_chunks(xp, x, 16), limit=np.inf))
    assert found.dtype == np.float32
    ranks = (np.argsort(np.argsort(x, axis=None)).reshape(x.shape) + 1) / x.size
    assert np.abs(found - ranks).max() < 0.05


def test_equalizing_computes_nothing(equalize: Any) -> None:
    def scheduler(*arguments: Any, **options: Any) -> None:
        raise AssertionError("computed while the graph was built")

    with dask.config.set(scheduler=scheduler):
        for dtype in ("u1", "f4", "u2"):
            equalize(da.zeros((8, 8), dtype=dtype, chunks=4))


def dijkstra(lengths: Any, start: int) -> Any:
    """Return the lengths of the shortest paths from a node, by taking the nearest one each time."""
    found = np.full(len(lengths), np.inf)
    near = [(0.0, start)]
    while near:
        length, node = heappop(near)
        if length < found[node]:
            found[node] = length
            for other in np.flatnonzero(np.isfinite(lengths[node])):
                heappush(near, (length + float(lengths[node, other]), int(other)))
    return found


def test_travel_times_are_those_of_dijkstra(town: Any, xp: ModuleType) -> None:
    lengths = town.tabulate(town.build_town(7))
    lazy = town.shortest_paths(to_chunks(xp, lengths, 20))
    expected = [dijkstra(lengths, start) for start in range(len(lengths))]
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(to_numpy(xp, lazy), expected)


@pytest.mark.parametrize("nodes", [1, 2, 3, 40])
def test_roads_may_lead_one_way_or_nowhere(town: Any, xp: ModuleType, nodes: int) -> None:
    rng = np.random.default_rng(nodes)
    lengths = rng.integers(1, 99, (nodes, nodes)).astype("f4")
    lengths[rng.random((nodes, nodes)) > 1.5 / nodes] = np.inf
    np.fill_diagonal(lengths, 0)
    found = to_numpy(xp, town.shortest_paths(to_chunks(xp, lengths, 16)))
    np.testing.assert_array_equal(found, [dijkstra(lengths, start) for start in range(nodes)])
    assert nodes < 40 or np.isinf(found).any()


@pytest.mark.parametrize("side", [2, 5, 12])
def test_a_town_is_connected_by_two_way_roads_that_are_as_fast_as_a_car(
    town: Any, side: int
) -> None:
    roads = town.build_town(side)
    lengths = town.tabulate(roads)
    np.testing.assert_array_equal(lengths, lengths.T)
    assert np.isfinite(dijkstra(lengths, 0)).all()
    distance = np.linalg.norm(np.diff(roads.places[roads.ends], axis=1), axis=-1)[:, 0]
    assert (distance / roads.seconds * 3600 <= 60).all()


def run(name: str, *arguments: str, cwd: Path) -> str:
    """Run an example; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def check_picture(image: Any, folder: Path, text: str) -> None:
    """Hold an example to the one picture that it says it has drawn."""
    (path,) = (folder / "demo").iterdir()
    assert f"figure: demo/{path.name}" in text
    with image.open(path) as found:
        found.load()
        assert found.format == "PNG"
        assert found.width > 800
        assert found.height > 500


def test_the_picture_before_and_after_is_written(tmp_path: Path) -> None:
    pytest.importorskip("skimage")
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    text = run("equalize.py", "skimage:moon", "--out", "demo", cwd=tmp_path)
    assert text.startswith("backend: ")
    check_picture(image, tmp_path, text)


def test_the_map_of_travel_times_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    text = run("shortest_paths.py", "--side", "6", "--chunk", "16", "--out", "demo", cwd=tmp_path)
    assert text.startswith("backend: ")
    assert "places: 36, roads: " in text
    for words in ("paths: 1296, in ", " on average, ", "centre: place "):
        assert words in text
    check_picture(image, tmp_path, text)


def test_moving_averages_are_those_of_a_loop(xp: ModuleType) -> None:
    monoid = load("recurrence").moving_average(5)
    x = np.random.default_rng(0).normal(size=1000)
    keep, total, weight, expected = 0.5 ** (1 / 5), 0.0, 0.0, []
    for sample in x:
        total, weight = keep * total + sample, keep * weight + 1
        expected.append(total / weight)
    found = to_numpy(xp, dc.scan(to_chunks(xp, x, 64), monoid, axis=0))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_moving_average_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    text = run("recurrence.py", "--size", "5000", "--chunk", "999", "--out", "demo", cwd=tmp_path)
    assert text.startswith("backend: ")
    assert "samples: 5000 in 6 chunks, in " in text
    check_picture(image, tmp_path, text)


def test_the_cluster_computes(tmp_path: Path) -> None:
    text = run("cluster.py", "--size", "100000", "--chunk", "30000", cwd=tmp_path)
    assert "array of 100000 values in 4 chunks" in text
    for name in ("workers: ", "describe: ", "histogram: ", "cumsum: ", "last element "):
        assert name in text

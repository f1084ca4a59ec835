"""The examples, run as scripts, and held to what they promise."""

from __future__ import annotations

import ast
import math
import re
import sys
from contextlib import chdir, redirect_stdout
from heapq import heappop, heappush
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from itertools import chain, groupby
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from support import grey
from support.processes import python

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


@pytest.fixture(scope="module")
def clahe() -> Any:
    """Return the function of the example of equalisation that works on tiles."""
    return load("equalize").clahe


@pytest.mark.parametrize("shape", [(64, 64), (64, 64, 3)])
def test_clahe_of_one_tile_is_limited_equalisation(
    clahe: Any, equalize: Any, xp: ModuleType, shape: tuple[int, ...]
) -> None:
    x = picture(shape)
    found = to_numpy(xp, clahe(to_chunks(xp, x, 16), size=64, limit=4.0))
    np.testing.assert_array_equal(found, to_numpy(xp, equalize(to_chunks(xp, x, 16), limit=4.0)))


def test_clahe_blends_the_levels_of_the_nearest_tiles(clahe: Any, xp: ModuleType) -> None:
    x, size = picture((50, 70)), 20
    padded = np.pad(x, ((0, 10), (0, 10)), "symmetric")
    tiles = padded.reshape(3, size, 4, size).swapaxes(1, 2)
    counts = [[np.bincount(tile.ravel(), minlength=256) for tile in row] for row in tiles]
    levels = np.cumsum(counts, axis=-1) / size**2 * 255
    expected = np.empty(x.shape)
    for (i, j), value in np.ndenumerate(x):
        y, z = (i + 0.5) / size - 0.5, (j + 0.5) / size - 0.5
        near = [np.clip((np.floor(one), np.floor(one) + 1), 0, n) for one, n in ((y, 2), (z, 3))]
        weights = np.outer((1 - y % 1, y % 1), (1 - z % 1, z % 1))
        expected[i, j] = (weights * levels[np.ix_(*np.array(near, int), [value])][..., 0]).sum()
    found = to_numpy(xp, clahe(to_chunks(xp, x, (32, 48)), size=size, limit=np.inf))
    assert found.dtype == np.uint8
    # What lies on a half may be rounded to either side.
    assert np.abs(found - expected).max() < 0.501


def test_clahe_evens_out_light_that_equalisation_leaves(
    clahe: Any, equalize: Any, xp: ModuleType
) -> None:
    x = picture((80, 80))
    x[:, :40] //= 2
    of_all = to_numpy(xp, equalize(to_chunks(xp, x, 32), limit=np.inf)).astype("f8")
    by_tiles = to_numpy(xp, clahe(to_chunks(xp, x, 32), size=20, limit=np.inf)).astype("f8")
    assert of_all[:, 50:].mean() - of_all[:, :30].mean() > 100
    assert abs(by_tiles[:, 50:].mean() - by_tiles[:, :30].mean()) < 10


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
    """Run an example in this process, with nothing open afterwards; return what it prints."""
    pytest.importorskip("skimage")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    before, printed = sys.argv, StringIO()
    sys.argv = [name, *arguments, "--out", "demo"]
    try:
        with chdir(cwd), redirect_stdout(printed), grey.checked():
            run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv = before
        pyplot.close("all")
    return printed.getvalue()


def run_apart(name: str, *arguments: str, cwd: Path) -> str:
    """Run an example in a process of its own; return what it prints."""
    done = python(EXAMPLES / name, *arguments, "--out", "demo", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def check_picture(folder: Path, text: str) -> None:
    """Hold an example to the one picture that it says it has drawn."""
    image = pytest.importorskip("PIL.Image")
    (path,) = (folder / "demo").iterdir()
    assert f"figure: demo/{path.name}" in text
    with image.open(path) as found:
        found.load()
        assert found.format == "PNG"
        assert found.width > 800
        assert found.height > 500


#: Examples, their arguments, and words that each prints.
DRAWN = {
    "climatology": ("--years 2", ["days: 731 of 36 x 72 cells, in ", "months: 24, the warmest +"]),
    "equalize": ("skimage:moon --copies 2 --tile 200", []),
    "events": (
        "--size 50000 --chunk 9999",
        ["samples: 50000 in 6 chunks, in ", "events: ", "interval: "],
    ),
    "galaxies": ("--chunk 350", ["pixels: 872000 with 1936 regions, in ", "around (473.0, 725.0)"]),
    "gaps": (
        "--days 5 --chunk 999",
        ["samples: 7200 in 8 chunks, in ", "missing: ", "cubic metres"],
    ),
    "match": ("skimage:chelsea skimage:coffee", []),
    "quantile_mapping": (
        "--years 2",
        ["days: 730 of 12 x 24 cells, in ", "warm days: off by ", " degrees before, "],
    ),
    "recurrence": ("--size 5000 --chunk 999", ["samples: 5000 in 6 chunks, in "]),
    "reproducible": (
        "--size 20000 --chunkings 9",
        ["entries: 20001, cut in 9 ways, ", "dc.sum(..., reproducible=True): 1 result, "],
    ),
    "sampling": (
        "--size 5000 --draws 7000 --chunk 999",
        ["draws: 7000 from 5000 weights, in ", "bins: 200, of which "],
    ),
    "sensors": (
        "--days 20 --chunk 8",
        [
            "samples: 172800 in 3 chunks, in ",
            *("minimum: ", "median: ", "upper quartile: ", "outliers: "),
        ],
    ),
    "shortest_paths": (
        "--side 6 --chunk 16",
        ["places: 36, roads: ", "paths: 1296, in ", " on average, ", "centre: place "],
    ),
    "spells": (
        "--years 2 --chunk 300",
        ["days: 731 of 18 x 36 cells, in ", "heat waves: ", " a year and cell, of up to "],
    ),
    "zones": ("--side 300 --chunk 350", ["pixels: 872000 in 12 regions, in "]),
}


@pytest.mark.parametrize("name", DRAWN)
def test_an_example_says_what_it_finds_and_draws_it(tmp_path: Path, name: str) -> None:
    arguments, said = DRAWN[name]
    text = run(f"{name}.py", *arguments.split(), cwd=tmp_path)
    assert text.startswith("backend: ")
    assert "nan" not in text
    for words in said:
        assert words in text
    check_picture(tmp_path, text)


def test_moving_averages_are_those_of_a_loop(xp: ModuleType) -> None:
    monoid = load("recurrence").moving_average(5)
    x = np.random.default_rng(0).normal(size=1000)
    keep, total, weight, expected = 0.5 ** (1 / 5), 0.0, 0.0, []
    for sample in x:
        total, weight = keep * total + sample, keep * weight + 1
        expected.append(total / weight)
    found = to_numpy(xp, dc.scan(to_chunks(xp, x, 64), monoid, axis=0))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.fixture(scope="module")
def sensors() -> Any:
    """Return the example of outliers."""
    return load("sensors")


def test_outliers_are_numpy_s_and_their_number_is_known(sensors: Any, xp: ModuleType) -> None:
    x = np.random.default_rng(0).standard_t(2, (50, 40))
    lazy = to_chunks(xp, x, (16, 40))
    expected = np.quantile(x, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(to_numpy(xp, sensors.five_numbers(lazy)), expected)
    low, high = sensors.fences(expected)
    reach = 1.5 * (expected[3] - expected[1])
    assert (low, high) == (expected[1] - reach, expected[3] + reach)
    beyond = (x < low) | (x > high)
    assert 50 < beyond.sum() < 500
    found = sensors.find_outliers(lazy, low, high)
    assert [one.shape for one in found] == [(beyond.sum(),)] * 3
    for one, wanted in zip(found, (*np.nonzero(beyond), x[beyond]), strict=True):
        np.testing.assert_array_equal(to_numpy(xp, one), wanted)


def test_quartiles_of_days_are_numpy_s(sensors: Any, xp: ModuleType) -> None:
    x = np.random.default_rng(0).normal(size=(50, 40))
    found = to_numpy(xp, sensors.five_numbers(to_chunks(xp, x, (16, 40)), axis=1))
    np.testing.assert_array_equal(found, np.quantile(x, [0, 0.25, 0.5, 0.75, 1], axis=1))


def test_the_sensor_s_series_is_the_same_whenever_it_is_computed(sensors: Any) -> None:
    x = sensors.series(6, 2)
    np.testing.assert_array_equal(x.compute(), x.compute())


def test_short_gaps_are_filled_and_long_ones_stay() -> None:
    gaps = load("gaps")
    x = np.where(np.arange(60) % 20 < 5, np.nan, 3.0)
    x[30:34] = np.nan
    filled, smooth = gaps.fill_and_smooth(da.from_array(x, chunks=7), 4, 2)
    left = np.flatnonzero(np.isnan(filled.compute()))
    np.testing.assert_array_equal(left, [0, 1, 2, 3, 4, 24, 44])
    np.testing.assert_array_equal(smooth.compute(), filled.compute())
    np.testing.assert_allclose(gaps.volume(filled).compute(), 3 * np.arange(60))


def test_anomalies_of_months_are_numpy_s(xp: ModuleType) -> None:
    example = load("climatology")
    x = np.random.default_rng(0).random((2, 3, 731), "f4")
    days = np.arange("1991-01-01", "1993-01-01", dtype="M8[D]")
    months = days.astype("M8[M]")
    lazy = to_chunks(xp, x[..., : len(days)], (2, 3, 100))
    mean, _ = example.climatology(lazy, months)
    found = to_numpy(xp, example.anomalies(lazy, months, mean))
    assert found.shape == (2, 3, 24)
    # Of two years one is as far above the mean of both as the other is below.
    np.testing.assert_allclose(found[..., :12], -found[..., 12:], atol=0.01)


def test_heat_waves_are_those_of_a_loop(xp: ModuleType) -> None:
    spells, years = load("spells"), np.repeat([1991, 1992, 1993], 40)
    x = np.random.default_rng(0).normal(size=(2, 3, 120)).round(2)
    x[0, 0, 37:43] = 1  # over the end of a year
    limit = to_chunks(xp, np.zeros((2, 3)), (2, 3))
    events = spells.heat_waves(to_chunks(xp, x, (1, 3, 17)), limit, years, 2)
    number, days, longest, degrees = (to_numpy(xp, y) for y in spells.of_years(events, years))
    for at in np.ndindex(2, 3, 3):
        line = x[(*at[:2], years == 1991 + at[2])]
        waves = [[*wave] for hot, wave in groupby(line, lambda degree: degree > 0) if hot]
        waves = [wave for wave in waves if len(wave) >= 2]
        lengths = [*map(len, waves)]
        assert (number[at], days[at], longest[at]) == (len(waves), sum(lengths), max(lengths))
        assert degrees[at] == pytest.approx(math.fsum(chain(*waves)))


def test_models_are_mapped_as_by_a_loop(xp: ModuleType) -> None:
    example, shares = load("quantile_mapping"), np.linspace(0, 1, 9)
    rng = np.random.default_rng(0)
    model, observed = rng.normal(size=(2, 2, 3, 365 * 3))
    lazy = [to_chunks(xp, x, (2, 2, 100)) for x in (model, observed)]
    learned = [example.quantiles_by_day(x, shares, 5) for x in lazy]
    found = to_numpy(xp, example.correct(lazy[0], *learned))
    tables = [to_numpy(xp, table) for table in learned]
    for day in (0, 1, 180, 364):
        around = np.isin(np.arange(365 * 3) % 365, np.arange(day - 2, day + 3) % 365)
        for table, x in zip(tables, (model, observed), strict=True):
            expected = np.quantile(x[..., around], shares, axis=-1)
            np.testing.assert_allclose(table[..., day], expected)
    for *cell, t in np.ndindex(2, 3, 365):
        curves = [table[(slice(None), *cell, t)] for table in tables]
        expected = np.interp(model[(*cell, t)], *curves)
        assert found[(*cell, t)] == pytest.approx(expected, abs=1e-5)


def starts(x: Any, threshold: float, dead: int) -> list[int]:
    """Return where events start, by a look at each sample."""
    found, last = [], None
    for i, sample in enumerate(x):
        if sample > threshold:
            if last is None or i - last > 1 + dead:
                found.append(i)
            last = i
    return found


@pytest.mark.parametrize("dead", [0, 3])
@pytest.mark.parametrize("threshold", [-9, 0.5, 2, 9])
def test_events_are_those_of_a_loop(xp: ModuleType, threshold: float, dead: int) -> None:
    x = np.random.default_rng(0).normal(size=1000)
    lazy = load("events").find_events(to_chunks(xp, x, 64), threshold, dead)
    expected = starts(x, threshold, dead)
    assert lazy.shape == (len(expected),)
    assert max(lazy.chunks[0]) - min(lazy.chunks[0]) <= 1
    np.testing.assert_array_equal(to_numpy(xp, lazy), expected)
    np.testing.assert_array_equal(to_numpy(xp, da.diff(lazy)), np.diff(expected))


def test_draws_are_numpy_s(xp: ModuleType) -> None:
    rng = np.random.default_rng(0)
    # Integers, whose sums are exact, and none at either end.
    weights = rng.integers(0, 3, 500) * (np.arange(500) % 499 > 3)
    numbers = rng.random((30, 20))
    numbers[0, :2] = 0, np.nextafter(1, 0)
    draw = load("sampling").draw
    lazy = draw(to_chunks(xp, weights.astype("f8"), 64), to_chunks(xp, numbers, 16))
    found = to_numpy(xp, lazy)
    sums = np.cumsum(weights)
    np.testing.assert_array_equal(found, np.searchsorted(sums, numbers * sums[-1], "right"))
    assert (weights[found] > 0).all()


def test_draws_are_as_frequent_as_their_weights(xp: ModuleType) -> None:
    rng = np.random.default_rng(0)
    weights, numbers = rng.exponential(size=50), rng.random(100_000)
    draw = load("sampling").draw
    found = to_numpy(xp, draw(to_chunks(xp, weights, 16), to_chunks(xp, numbers, 30_000)))
    expected = weights / weights.sum() * len(numbers)
    # Chi-square of 49 degrees of freedom: 49 on average, above 95 once in 10,000 times.
    assert ((np.bincount(found, minlength=50) - expected) ** 2 / expected).sum() < 95


@pytest.fixture(scope="module")
def match() -> Any:
    """Return the function of the example that bears its name."""
    return load("match").match


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8"])
def test_matching_is_numpy_s(match: Any, xp: ModuleType, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(90, 20, (60, 80)).astype(dtype), rng.gamma(2, 20, (50, 70)).astype(dtype)
    lazy = match(to_chunks(xp, x, 16), to_chunks(xp, y, 30), steps=100)
    shares = np.linspace(0, 1, 101)
    expected = np.interp(x, np.quantile(x, shares), np.quantile(y, shares))
    expected = (np.rint(expected) if dtype[0] == "u" else expected).astype(dtype)
    assert lazy.dtype == dtype
    found = to_numpy(xp, lazy).astype("f8")
    # CuPy rounds a product and its sum once; by that a half may round to the other integer.
    off = 1 if dtype[0] == "u" else 1e-4
    np.testing.assert_allclose(found, expected, rtol=0, atol=0 if xp is np else off)


@pytest.mark.parametrize("colors", [(), (3,)])
def test_matching_is_scikit_image_s(match: Any, xp: ModuleType, colors: tuple[int, ...]) -> None:
    exposure = pytest.importorskip("skimage.exposure")
    rng = np.random.default_rng(0)
    x = rng.normal(90, 20, (60, 80, *colors)).astype("u1")
    y = (200 * rng.random((50, 70, *colors)) ** 1.5).astype("u1")
    expected = exposure.match_histograms(x, y, channel_axis=-1 if colors else None)
    found = to_numpy(xp, match(to_chunks(xp, x, 16), to_chunks(xp, y, 30), steps=20_000))
    # There is every value up to 200, so its lines between two are less than one below.
    assert np.abs(found - expected.astype("f8")).max() <= 1


def test_a_picture_matches_itself(match: Any, xp: ModuleType) -> None:
    x = picture((20, 30, 3))
    lazy = to_chunks(xp, x, 16)
    np.testing.assert_array_equal(to_numpy(xp, match(lazy, lazy)), x)


def test_matching_and_drawing_compute_nothing(match: Any, sensors: Any) -> None:
    def scheduler(*arguments: Any, **options: Any) -> None:
        raise AssertionError("computed while the graph was built")

    with dask.config.set(scheduler=scheduler):
        match(da.zeros((8, 8, 3), dtype="u1", chunks=4), da.zeros((6, 6, 3), dtype="f4", chunks=4))
        load("sampling").draw(da.ones(8, chunks=4), da.zeros(8, chunks=4))
        sensors.five_numbers(sensors.series(4, 2), axis=1)


def test_the_cluster_computes(tmp_path: Path) -> None:
    given = ("--size", "100000", "--chunk", "30000")
    text = run_apart("cluster.py", *given, cwd=tmp_path)
    assert "array of 100000 values in 4 chunks" in text
    for name in ("workers: ", "describe: ", "histogram: ", "cumsum: ", "last element "):
        assert name in text
    check_picture(tmp_path, text)


def test_smoothing_is_three_box_filters(xp: ModuleType, tmp_path: Path) -> None:
    smooth = load("smooth")
    clean, noisy = smooth.field(60)
    picture = noisy.compute()
    found = to_numpy(xp, smooth.smooth(to_chunks(xp, picture, (25, 40)), 5))
    expected = np.pad(picture, 60, mode="symmetric")
    for _ in range(3):
        for axis in (0, 1):
            expected = sum(np.roll(expected, k, axis) for k in range(-2, 3)) / 5
    np.testing.assert_allclose(found, expected[60:-60, 60:-60], atol=1e-12)
    assert np.abs(found - clean).mean() < np.abs(picture - clean).mean() / 2


def test_a_trend_forgets_what_was_far_off() -> None:
    smooth = load("smooth")
    readings = smooth.series(300)
    means, deviations = dask.compute(*smooth.trend(readings))
    assert np.isnan(means[3350])
    assert means[6000] > 1e12
    assert (np.abs(means[6400:]) < 30).all()
    assert (deviations[6400:] < 10).all()


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_is_a_page_of_a_gallery(name: str) -> None:
    title, line, empty, *rest = (ast.get_docstring(ast.parse(source(name))) or "").splitlines()
    assert line == "=" * len(title)
    assert empty == ""
    assert len(" ".join(rest)) > 200
    assert f"Run it as ``python examples/{name}.py " in " ".join(rest)


def source(name: str) -> str:
    return (EXAMPLES / f"{name}.py").read_text()


def test_reproducible_sums_have_the_same_bits_and_the_others_are_near(xp: ModuleType) -> None:
    example = load("reproducible")
    values = example.ledger(2000)
    exact = math.fsum(values)
    assert exact == pytest.approx(0.01)
    sizes = example.chunk_sizes(values.size, 6)
    assert sizes[-1] == values.size
    for size in sizes:
        lazy = example.SUMS["dc.sum(..., reproducible=True)"](to_chunks(xp, values, size))
        assert float(lazy.compute()) == pytest.approx(exact, abs=1e-13)


def test_means_by_a_table_are_those_of_boxes(xp: ModuleType) -> None:
    example, x = load("summed_area"), picture((30, 40)).astype("f8")
    table = dc.integral_image(to_chunks(xp, x, 16))
    found = to_numpy(xp, example.means_by_table(table, 5))
    windows = np.lib.stride_tricks.sliding_window_view(x, (5, 5)).mean((-1, -2))
    np.testing.assert_allclose(found, windows[1:, 1:], rtol=1e-12)


def test_otsu_is_scikit_image_s() -> None:
    filters = pytest.importorskip("skimage.filters")
    x = np.concatenate([picture().ravel(), picture().ravel() // 3])
    assert load("summed_area").otsu(np.bincount(x, minlength=256)) == filters.threshold_otsu(x)


def test_the_ink_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("skimage")
    text = run("summed_area.py", "--copies", "2", cwd=tmp_path)
    assert "pixels: 293376 in 2 chunks, in " in text
    (off,) = re.findall("differ by (.*) at most", text)
    # Sums of uint8 are exact, and their quotients are rounded once.
    assert float(off) < 1e-12
    check_picture(tmp_path, text)


def test_the_stream_is_counted_and_drawn(tmp_path: Path) -> None:
    given = ("--size", "50000", "--chunk", "2000", "--stretches", "5")
    text = run("stream.py", *given, cwd=tmp_path)
    assert "numbers: 50000 in 25 chunks, in " in text
    # A few lifetimes are beyond the bins.
    (counted,) = re.findall("counted: (.*), in 5 histograms", text)
    assert 49_900 < int(counted) <= 50_000
    check_picture(tmp_path, text)


# Dask's threads restore the filters of one another's warnings.
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")
def test_an_xarray_script_is_served_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    pytest.importorskip("flox")
    text = run("unchanged.py", "--years", "1", cwd=tmp_path)
    (calls,) = re.findall("^calls: (.*)$", text, re.MULTILINE)
    served = {"groupby_reduce", "move_mean", "nancumsum", "nanmean", "nanquantile", "nanstd"}
    assert served <= {call.removesuffix(" by dask_coop") for call in calls.split(", ")}
    (apart,) = re.findall("differ by (.*) of the largest", text)
    # Of float32.
    assert 0 < float(apart) < 1e-5
    check_picture(tmp_path, text)

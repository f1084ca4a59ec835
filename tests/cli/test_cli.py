"""The command line: what it prints and writes, and what it says to those who ask wrongly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from support.processes import beside, printed, python

import dask_coop
from dask_coop.cli import advice, backends, info, loops, main
from dask_coop.cli.describe import command as command_describe
from dask_coop.cli.describe import summaries
from dask_coop.cli.describe.readers import open_source
from dask_coop.cli.describe.summaries import QUANTILES, summarize
from dask_coop.compiled.waits import WAITS
from dask_coop.errors import pip_install

h5py = pytest.importorskip("h5py")
io = pytest.importorskip("skimage.io")
zarr = pytest.importorskip("zarr")
image = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(200, 300))
WITH_NAN = np.where(RNG.random((200, 300)) < 0.1, np.nan, NORMAL).astype("f4")
PICTURE = RNG.poisson(90, (64, 48, 3)).astype("u1")
DATES = np.datetime64("2001-02-03", "ns") + RNG.integers(0, 10**17, 5000).astype("m8[ns]")
DATES[::50] = "NaT"
MOON = "skimage:moon"


@pytest.fixture(autouse=True)
def _without_the_line_on_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out of stderr that loops are compiled, which only slow machines print."""
    monkeypatch.setattr(WAITS, "tells", False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "other").mkdir()
    np.save(folder / "normal.npy", NORMAL)
    np.save(folder / "other" / "normal.npy", NORMAL + 9)
    np.save(folder / "nan.npy", WITH_NAN)
    np.save(folder / "flags.npy", NORMAL > 0)
    np.save(folder / "same.npy", np.full(9, 4.0))
    np.save(folder / "tail.npy", RNG.lognormal(0, 3, 9999))
    np.save(folder / "nothing-but-nan.npy", np.full(9, np.nan))
    np.save(folder / "nothing-finite.npy", np.array([np.nan, np.inf, -np.inf]))
    np.save(folder / "far.npy", np.array([-1.7e308, 1.7e308]))
    np.save(folder / "half.npy", np.array([-65504, 65504, 65504], "f2"))
    np.save(folder / "dates.npy", DATES)
    np.save(folder / "days.npy", DATES.astype("M8[D]"))
    np.save(folder / "times.npy", (DATES - DATES[1]).astype("m8[ms]"))
    np.save(folder / "nothing-but-nat.npy", np.full(3, "NaT", "M8[s]"))
    np.save(folder / "text.npy", np.array(["a"]))
    np.save(folder / "objects.npy", np.array([None]))
    np.save(folder / "complex.npy", np.array([1j]))
    np.save(folder / "empty.npy", np.empty((0, 2)))
    zarr.save_array(folder / "array.zarr", WITH_NAN)
    group = zarr.open_group(folder / "group.zarr", mode="w")
    group.create_array("a", data=NORMAL)
    group.create_array("b/c", data=PICTURE)
    with h5py.File(folder / "one.h5", "w") as file:
        file.create_dataset("data", data=WITH_NAN, chunks=(50, 70))
    with h5py.File(folder / "two.hdf5", "w") as file:
        file["a"], file["b/c"] = NORMAL, PICTURE
    for name in ("picture.png", "picture.tif"):
        io.imsave(folder / name, PICTURE, check_contrast=False)
    (folder / "notes.txt").write_text("no array")
    return folder


def describe(*arguments: Any) -> int:
    return main.main(["describe", "--cpu", *map(str, arguments)])


@pytest.fixture
def told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what describes files of the folder, and returns all that is printed of them."""

    def tell(*arguments: Any) -> str:
        names = [folder / a if str(a).endswith((".npy", ".zarr")) else a for a in arguments]
        assert describe(*names, "--out", tmp_path) == 0
        return capsys.readouterr().out

    return tell


def numbers(text: str) -> dict[str, float]:
    """Return the rows of the table, by name."""
    rows = re.findall(r"^  (\S.*?)  +(\S+)$", text, flags=re.MULTILINE)
    return {name: float({"True": 1, "False": 0}.get(value, value)) for name, value in rows}


def assert_describes(text: str, x: Any, bins: int, width: float | None = None) -> None:
    """Hold a printed table to NumPy's results."""
    found = numbers(text)
    values = x[~np.isnan(x)].astype("f8")
    assert found["count"] == values.size
    assert found["NaN"] == x.size - values.size
    assert found["min"] == pytest.approx(values.min(), rel=1e-8)
    assert found["max"] == pytest.approx(values.max(), rel=1e-8)
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-6, abs=1e-6)
    assert found["standard deviation"] == pytest.approx(values.std(), rel=1e-6)
    width = width or (values.max() - values.min()) / bins
    assert found["width of a bin"] == pytest.approx(width, rel=1e-5)
    method: Any = "inverted_cdf" if x.dtype == bool else "linear"
    for name, q in QUANTILES.items():
        expected = float(np.quantile(x[~np.isnan(x)], q, method=method))
        assert found[name] == pytest.approx(expected, rel=1e-8)


def assert_is_figure(path: Path) -> None:
    with image.open(path) as picture:
        picture.load()
        assert picture.format == "PNG"
        assert picture.width > 800
        assert picture.height > 600
        assert len(picture.convert("L").getcolors()) > 10


@pytest.mark.parametrize(
    ("source", "options", "x", "figure"),
    [
        ("normal.npy", [], NORMAL, "normal"),
        ("nan.npy", [], WITH_NAN, "nan"),
        ("array.zarr", [], WITH_NAN, "array"),
        ("group.zarr", ["--dataset", "a"], NORMAL, "group-a"),
        ("one.h5", [], WITH_NAN, "one-data"),
        ("two.hdf5", ["--dataset", "a"], NORMAL, "two-a"),
        ("normal.npy", ["--bins", "1000"], NORMAL, "normal"),
        ("normal.npy", ["--chunks", "auto"], NORMAL, "normal"),
        ("normal.npy", ["--chunks", "77"], NORMAL, "normal"),
        ("normal.npy", ["--chunks", "50,300"], NORMAL, "normal"),
        ("one.h5", ["--chunks", "33"], WITH_NAN, "one-data"),
    ],
)
def test_floats(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    options: list[str],
    x: Any,
    figure: str,
) -> None:
    assert describe(folder / source, *options, "--out", tmp_path) == 0
    text, progress = capsys.readouterr()
    assert_describes(text, x, 1000 if "--bins" in options else 256)
    assert not progress
    path = tmp_path / f"{figure}-histogram.png"
    assert list(tmp_path.iterdir()) == [path]
    assert_is_figure(path)
    assert f"figure: {path}" in text
    shape = " x ".join(map(str, x.shape))
    assert f"source: {folder / source}" in text
    assert f"shape: {shape} (" in text
    assert f"dtype: {x.dtype}" in text
    assert re.search(r"^backend: NumPy, \d+ threads?$", text, flags=re.MULTILINE)
    apart = r"( \(\+ \S+ s compiling, first use only\))?"
    said = rf"^time: \d+\.\d\d s for 2 reads of .+, \S+ GB/s{apart}$"
    assert re.search(said, text, flags=re.MULTILINE)


def test_chunks_are_as_asked_for(told: Callable[..., str]) -> None:
    assert "chunks: 12 of 50 x 100" in told("normal.npy", "--chunks", "50,100")


#: How many integers there are from the least to the largest of the picture, and of ten bins.
SPAN = int(PICTURE.max()) - int(PICTURE.min()) + 1
WIDTH = -(-SPAN // 10)


@pytest.mark.parametrize(
    ("source", "options", "x", "bins", "width"),
    [
        # Small integers have a bin each.
        ("picture.png", [], PICTURE, SPAN, 1),
        ("picture.tif", [], PICTURE, SPAN, 1),
        ("group.zarr", ["--dataset", "b/c"], PICTURE, SPAN, 1),
        ("two.hdf5", ["--dataset", "/b/c"], PICTURE, SPAN, 1),
        # Many share bins evenly.
        ("picture.png", ["--bins", 10], PICTURE, -(-SPAN // WIDTH), WIDTH),
        ("flags.npy", [], NORMAL > 0, 2, 1),
    ],
)
def test_integers(
    folder: Path, told: Callable[..., str], source: str, options: Any, x: Any, bins: int, width: int
) -> None:
    assert_describes(told(folder / source, *options), x, bins, width=width)


def test_float16(told: Callable[..., str]) -> None:
    found = numbers(told("half.npy"))
    assert (found["min"], found["max"]) == (-65504, 65504)
    assert found["standard deviation"] == pytest.approx(65504 * np.sqrt(8 / 9), rel=1e-3)


def table(text: str) -> dict[str, str]:
    """Return the rows of a table, whose values may be of several words, by name."""
    return dict(re.findall(r"^  (\S.*?)  +(\S.*)$", text, flags=re.MULTILINE))


@pytest.mark.parametrize(("name", "unit"), [("dates", "ns"), ("days", "D")])
def test_dates(tmp_path: Path, told: Callable[..., str], name: str, unit: str) -> None:
    found, known = table(told(f"{name}.npy", "--chunks", 999)), np.sort(DATES[~np.isnat(DATES)])
    known = known.astype(f"M8[{unit}]")
    assert (int(found["count"]), int(found["NaT"])) == (len(known), 100)
    for label, value in (("min", known[0]), ("max", known[-1])):
        assert np.datetime64(found[label], unit) == value
    ticks = [int(tick) for tick in known.view("i8")]
    assert np.datetime64(found["mean"], unit) == np.datetime64(sum(ticks) // len(ticks), unit)
    days = np.std(known.astype("M8[s]").astype("f8")) / 86400
    assert abs(int(found["standard deviation"].split()[0]) - days) < 1
    for label, q in QUANTILES.items():
        assert np.datetime64(found[label], unit) == np.quantile(known, q)
    assert_is_figure(tmp_path / f"{name}-histogram.png")


def test_durations(tmp_path: Path, told: Callable[..., str]) -> None:
    text = told("times.npy", "--range", 0, 10**9)
    times = (DATES - DATES[1]).astype("m8[ms]")
    ticks = times[~np.isnat(times)].astype("i8")
    found = table(text)
    outside = int(((ticks < 0) | (ticks > 10**9)).sum())
    assert int(found["outside the histogram"]) == outside
    assert found["width of a bin"] == "01:05:06.25"
    assert found["min"].startswith(f"-{-ticks.min() // 86_400_000} days ")
    assert "1 read of" in text
    assert_is_figure(tmp_path / "times-histogram.png")


def test_dates_in_a_range_of_dates(told: Callable[..., str]) -> None:
    limits = ("2001-05-01", "2002-03-01")
    text = told("dates.npy", "--range", *limits)
    dates, low, high = DATES[~np.isnat(DATES)], *map(np.datetime64, limits)
    inside = len(dates[dates >= low]) - len(dates[dates > high])
    assert int(table(text)["outside the histogram"]) == 4900 - inside
    assert "1 read of" in text


@pytest.mark.parametrize(
    "ticks",
    [[1 - 2**63, 0, 2**63 - 1], [0, 5, 9], [7], [2**62, 2**62 + 10**6]],
    ids=["far", "near", "one", "late"],
)
@pytest.mark.parametrize("unit", ["ns", "as", "D", "Y"])
def test_dates_of_any_time_are_drawn(tmp_path: Path, ticks: list[int], unit: str) -> None:
    if unit in "DY":
        ticks = [tick % 20_000_000 for tick in ticks]
    np.save(tmp_path / "x.npy", np.array(ticks, "i8").view(f"M8[{unit}]"))
    assert describe(tmp_path / "x.npy", "--out", tmp_path) == 0
    assert_is_figure(tmp_path / "x-histogram.png")


def test_packed_numbers_are_unpacked_and_that_is_said(
    tmp_path: Path, told: Callable[..., str]
) -> None:
    pytest.importorskip("xarray")
    kelvin = np.where(RNG.random((30, 40)) < 0.1, np.nan, 280 + NORMAL[:30, :40])
    packed = np.where(np.isnan(kelvin), -32767, np.rint((kelvin - 273.15) / 0.01)).astype("i2")
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file["t2m"] = packed
        file["t2m"].attrs.update(scale_factor=0.01, add_offset=273.15, _FillValue=np.int16(-32767))
    text = told(tmp_path / "x.nc")
    assert "decoded: _FillValue -32767, scale_factor 0.01, add_offset 273.15 (int16 to" in text
    found = numbers(text)
    assert found["NaN"] == np.isnan(kelvin).sum()
    assert found["mean"] == pytest.approx(np.nanmean(kelvin), abs=0.005)


def test_what_is_packed_is_described_with_query_planning_too(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file["time"] = np.arange(31)
        file["time"].attrs["units"] = "days since 2000-01-01"
    (tmp_path / "out").mkdir()
    arguments = ("-m", "dask_coop", "describe", "--cpu", "--chunks", "9", "../x.nc")
    text = printed(*arguments, cwd=tmp_path / "out", DASK_ARRAY__QUERY_PLANNING="true")
    assert "chunks: 4 of 9" in text
    assert table(text)["mean"] == "2000-01-16T00:00:00"


@pytest.mark.parametrize("name", ["x.csv", "x.npy"])
def test_files_are_joined_with_query_planning_too(tmp_path: Path, name: str) -> None:
    pytest.importorskip("dask.dataframe", exc_type=ImportError)
    (tmp_path / "x.csv").write_text("b\n2.5\n4.5\n")
    np.save(tmp_path / "x.npy", [2.5, 4.5])
    arguments = ("-m", "dask_coop", "describe", "--cpu", "--json", "--join", name, name)
    (found,) = json.loads(printed(*arguments, cwd=tmp_path, DASK_ARRAY__QUERY_PLANNING="true"))
    assert (found["mean"], found["shape"], found["quantiles"]["0.99"]) == (3.5, [4], 4.5)


def test_one_value(told: Callable[..., str]) -> None:
    assert numbers(told("same.npy"))["median"] == 4


def test_a_range_takes_one_read_and_counts_what_it_leaves_out(told: Callable[..., str]) -> None:
    text = told("nan.npy", "--range", -1, 0.5, "--bins", 50)
    found = numbers(text)
    inside = WITH_NAN[(WITH_NAN >= -1) & (WITH_NAN <= 0.5)]
    assert found["count"] - found["outside the histogram"] == inside.size
    assert found["max"] == pytest.approx(np.nanmax(WITH_NAN))
    assert found["width of a bin"] == pytest.approx(0.03)
    assert found["median"] == pytest.approx(np.nanmedian(WITH_NAN))
    assert "for 1 read of" in text


#: Values, the options that they are described with, and whether each has a bin of its own.
DRAWN: dict[str, tuple[Any, tuple[Any, ...], bool]] = {
    "floats": (NORMAL, (256, None), False),
    "ties": (np.round(NORMAL, 1), (7, None), False),
    "range": (NORMAL, (50, (-1.0, 0.5)), False),
    "two": (np.array([1.0, 2.0]), (256, None), False),
    "bool": (NORMAL > 0, (256, None), True),
    "bytes": (PICTURE, (256, None), True),
    "few bins": (PICTURE, (10, None), False),
    "between": (np.array([3, 3, 4, 9], "u1"), (256, None), True),
    "days": (np.datetime64("2020-01-01") + np.arange(99) % 7, (256, None), True),
    "dates": (DATES, (256, None), False),
    "durations": (DATES - DATES[1], (256, (0, 10**16)), False),
}


@pytest.mark.parametrize("case", DRAWN)
def test_quantiles_lie_on_the_curve_at_the_share_of_values_up_to_them(case: str) -> None:
    values, (bins, limits), single = DRAWN[case]
    x = da.from_array(values, chunks=-(-len(values) // 3))
    summary = summarize(x, bins, limits, dask.compute)
    assert summary.single == single
    known = np.sort(values[~np.isnan(values)], axis=None)
    curve, dots = summary.curve(), summary.dots()
    assert (np.diff(curve) >= 0).all()
    first, last = (pytest.approx(share, abs=1e-12) for share in curve[1][[0, -1]])
    assert first == summary.below / known.size
    assert last == (summary.below + summary.inside) / known.size
    from matplotlib.figure import Figure

    from dask_coop.cli.describe import figures

    drawn = Figure().subplots()
    figures._draw_cumulative(drawn, summary)
    line, *others = (np.array(line.get_data(), "f8") for line in drawn.lines)
    marks = [tuple(map(float, mark[:, 0])) for mark in others if mark.shape == (2, 1)]
    assert len(marks) == len(set(figures.SHOWN) & set(dots))
    for x_mark, share in marks:
        here = np.isclose(line[0], x_mark, rtol=1e-12)
        # On a riser of the line, or on what rises slowly.
        shares = line[1][here] if here.any() else np.interp([x_mark], *line)
        assert shares.min() - 1e-12 <= share <= shares.max() + 1e-12
    for label, (_, share) in dots.items():
        value = summary.quantiles[label]
        least, most = ((known < value).mean(), (known <= value).mean())
        assert least - 1e-12 <= share <= most + 1e-12
        assert abs(share - QUANTILES[label]) <= max(0.25, 1 / known.size)
    assert case == "range" or dots.keys() == QUANTILES.keys() or limits


@pytest.mark.parametrize("limits", [None, (0, 10**8)])
@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i4", "f4", "f8", "m8[ns]"])
@pytest.mark.parametrize("kept", [True, False])
def test_reads_are_as_many_as_it_says(
    monkeypatch: pytest.MonkeyPatch, dtype: str, limits: Any, kept: bool
) -> None:
    monkeypatch.setattr(summaries, "KEPT", 2**30 if kept else 0)
    made = []

    def make(block_id: Any) -> Any:
        made.append(block_id)
        return np.random.default_rng(block_id).integers(0, 10**9, 1000).astype(dtype)

    x = da.map_blocks(make, chunks=((1000,) * 5,), dtype=dtype, meta=np.zeros(0, dtype))
    summary = summarize(x, 16, limits, dask.compute)
    assert summary.reads == len(made) / 5
    if x.dtype.itemsize <= 2:
        assert summary.reads == 1
    elif kept:
        assert summary.reads == (2 if limits is None else 1)
    quantiles = np.quantile(x.compute(), [*QUANTILES.values()], method="inverted_cdf")
    if dtype == "?":
        assert [*summary.quantiles.values()] == [*quantiles]


@pytest.mark.parametrize("limits", [(), ("--range", -1, 0.5)])
def test_infinities_and_nan_are_counted_and_the_others_described(
    tmp_path: Path, told: Callable[..., str], limits: Any
) -> None:
    x = WITH_NAN.astype("f8")
    x[:3, 5] = np.inf, -np.inf, -np.inf
    np.save(tmp_path / "x.npy", x)
    text, finite = told(tmp_path / "x.npy", *limits), np.where(np.isinf(x), np.nan, x)
    found = numbers(text)
    assert (found["infinite"], found["NaN"]) == (3, np.isnan(x).sum())
    assert_describes(
        text.replace(f"{int(found['NaN'])}\n", f"{np.isnan(finite).sum()}\n"),
        finite,
        256,
        1.5 / 256 if limits else None,
    )
    assert f"for {2 if limits else 3} reads" in text
    inside = (finite >= -1) & (finite <= 0.5) if limits else ~np.isnan(finite)
    assert found.get("outside the histogram", 0) == found["count"] - inside.sum()
    assert [*found][-1] == "width of a bin"

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    (found,) = json.loads(told(tmp_path / "x.npy", *limits, "--json"), parse_constant=refuse)
    assert (found["infinite"], found["nans"]) == (3, np.isnan(x).sum())
    assert sum(found["histogram"]["counts"]) == inside.sum()


def test_a_long_tail_is_pointed_out(told: Callable[..., str]) -> None:
    tail, normal = told("tail.npy", "normal.npy").split("\n\n")[:2]
    assert re.search(r"note: one bin holds 9\d\.\d% of the values; --range LO HI", tail)
    assert "note:" not in normal


def test_sources_of_one_name_have_figures_of_their_own(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A source that bears the name of a figure is not written over.
    np.save(tmp_path / "normal.npy", NORMAL)
    io.imsave(tmp_path / "normal-histogram.png", PICTURE, check_contrast=False)
    before = (tmp_path / "normal-histogram.png").read_bytes()
    monkeypatch.chdir(tmp_path)
    others = [folder / "normal.npy", folder / "other" / "normal.npy"]
    assert describe("normal.npy", "normal-histogram.png", *others, "--figure") == 0
    figures = re.findall(r"^figure: (.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert figures == [
        "normal-histogram-2.png",
        "normal-histogram-histogram.png",
        "normal-histogram-3.png",
        "normal-histogram-4.png",
    ]
    for figure in figures:
        assert_is_figure(Path(figure))
    assert Path("normal-histogram.png").read_bytes() == before


def test_json_is_all_that_is_printed(folder: Path, told: Callable[..., str]) -> None:
    names = ["normal.npy", "flags.npy", "dates.npy", "times.npy"]
    found = json.loads(told(*names, "--json", "--bins", 20), parse_constant=None)
    assert [one["source"] for one in found] == [str(folder / name) for name in names]
    normal, flags, dates, times = found
    assert (normal["shape"], normal["dtype"]) == ([200, 300], "float64")
    assert (normal["count"], normal["nans"]) == (NORMAL.size, 0)
    assert normal["mean"] == pytest.approx(NORMAL.mean())
    counts, edges = np.histogram(NORMAL, 20)
    assert normal["histogram"]["counts"] == counts.tolist()
    assert normal["histogram"]["edges"] == pytest.approx(edges)
    assert normal["quantiles"] == {str(q): np.quantile(NORMAL, q) for q in QUANTILES.values()}
    assert (flags["min"], flags["quantiles"]["0.99"]) == (False, True)
    assert flags["histogram"]["counts"] == [int((NORMAL <= 0).sum()), int((NORMAL > 0).sum())]
    assert np.datetime64(dates["min"]) == np.nanmin(DATES)
    assert sum(dates["histogram"]["counts"]) == dates["count"]
    assert times["max"] == int(np.nanmax((DATES - DATES[1]).astype("m8[ms]")).view("i8"))
    assert [one["reads"] for one in found] == [2, 1, 2, 2]
    for one in found:
        assert_is_figure(Path(one["figure"]))


def test_quiet_prints_nothing_but_errors(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe(folder / "normal.npy", "--quiet", "--out", tmp_path) == 0
    assert capsys.readouterr() == ("", "")
    assert_is_figure(tmp_path / "normal-histogram.png")
    assert describe(folder / "empty.npy", "--quiet", "--out", tmp_path) == 2
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)


ERRORS = {
    "no-source": (["describe"], "SOURCE"),
    "unknown-file": (["describe", "absent.npy"], "absent.npy: no such file"),
    "extension": (["describe", "notes.txt"], "'.txt' is not supported; use one of .npy"),
    "unknown-picture": (["describe", "skimage:sun"], "skimage:sun: scikit-image .* moon"),
    "unknown-dataset": (
        ["describe", "two.hdf5", "--dataset", "d"],
        "there is no dataset d; give --dataset NAME, one of a, b/c",
    ),
    "needless-dataset": (["describe", "normal.npy", "--dataset", "d"], "--dataset d does not"),
    "text": (["describe", "text.npy"], "text.npy: the dtype <U1 cannot be described; convert"),
    "objects": (["describe", "objects.npy"], "objects.npy: .* objects"),
    "complex": (["describe", "complex.npy"], "the dtype complex128 cannot be described"),
    "empty": (["describe", "empty.npy"], r"empty.npy: the array is empty \(shape \(0, 2\)\)"),
    "only-nan": (["describe", "nothing-but-nan.npy"], "but-nan.npy: all 9 values are NaN"),
    "infinite": (
        ["describe", "nothing-finite.npy"],
        "nothing-finite.npy: all 3 values are NaN or infinite; there is nothing to describe",
    ),
    "far": (["describe", "far.npy"], "far.npy: from -1.7e\\+308 to 1.7e\\+308 is too far"),
    "bins-0": (["describe", MOON, "--bins", "0"], "--bins: '0' is not a whole number from 1"),
    "bins-many": (["describe", MOON, "--bins", "9" * 9], "--bins: '999999999' is not .* to"),
    "bins-text": (["describe", MOON, "--bins", "many"], "--bins: 'many' is not a whole number"),
    "bins-narrow": (
        ["describe", "normal.npy", "--range", "1", "1.0000000000000002"],
        "normal.npy: .*; give fewer --bins or a wider --range",
    ),
    "range-order": (["describe", MOON, "--range", "3", "2"], "--range 3 2: give two finite"),
    "range-equal": (["describe", MOON, "--range", "3", "3"], "--range 3 3: give two finite"),
    "range-infinite": (["describe", MOON, "--range", "0", "inf"], "--range 0 inf: give two"),
    "range-nan": (["describe", MOON, "--range", "nan", "1"], "--range nan 1: give two finite"),
    "range-text": (
        ["describe", MOON, "--range", "a", "1"],
        "--range: 'a' is neither a number nor a date",
    ),
    "range-mixed": (["describe", MOON, "--range", "2020-01-01", "3"], "two finite .* or two dates"),
    "range-nat": (["describe", MOON, "--range", "NaT", "2020-01-01"], "range NaT 2020-01-01: give"),
    "range-dates": (
        ["describe", MOON, "--range", "2020-01-01", "2021-01-01"],
        "the values are uint8; give two numbers",
    ),
    "range-of-dates": (["describe", "dates.npy", "--range", "1", "2"], "give two dates, such as"),
    "range-of-durations": (
        ["describe", "times.npy", "--range", "2020-01-01", "2021-01-01"],
        "the values are timedelta64.ms.; give two numbers of its unit",
    ),
    "range-beyond-durations": (
        ["describe", "times.npy", "--range", "0", "1e300"],
        r"--range 1e\+300: timedelta64.ms. does not reach that far",
    ),
    "range-beyond-the-unit": (
        ["describe", "dates.npy", "--range", "2020-01-01", "3021-01-01"],
        "--range 3021-01-01: datetime64.ns. does not reach that date",
    ),
    "range-of-no-date": (
        ["describe", "dates.npy", "--range", "1901-01-01", "1902-01-01"],
        "no value lies within --range 1901-01-01 1902-01-01; the values go from 20",
    ),
    "only-nat": (["describe", "nothing-but-nat.npy"], "all 3 values are NaT"),
    "range-short": (["describe", MOON, "--range", "1"], "--range: expected 2 arguments"),
    "range-beside": (
        ["describe", MOON, "--range", "300", "301"],
        "no value lies within --range 300 301; the values go from 0 to 255",
    ),
    "chunks-text": (["describe", MOON, "--chunks", "big"], "--chunks: 'big' is neither 'auto'"),
    "chunks-0": (["describe", MOON, "--chunks", "0"], "--chunks: '0' is neither 'auto' nor"),
    "chunks-many": (
        ["describe", MOON, "--chunks", "9,9,9"],
        "--chunks 9,9,9 has 3 numbers and the array 2 axes",
    ),
    "out-is-a-file": (["describe", MOON, "--out", "notes.txt/a"], "notes.txt is not a folder"),
    "unknown-option": (["describe", MOON, "--colour"], "unrecognized arguments: --colour"),
    "unknown-command": (["draw", MOON], "invalid choice: 'draw'"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line_and_nothing_is_written(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    arguments, message = ERRORS[case]
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    if arguments[0] == "describe":
        out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
        arguments = [*arguments, "--cpu", *out]
    assert main.main(arguments) == 2
    _, text = capsys.readouterr()
    assert re.fullmatch(f"dask_coop: error: .*{message}.*\n", text)
    assert sorted(folder.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by its mode, for root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert describe(MOON, "--out", tmp_path / "out") == 2
    assert "is not writable; name another folder" in capsys.readouterr().err


def test_a_file_that_breaks_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=NORMAL, chunks=(200, 300), compression="gzip")
        chunk = file["x"].id.get_chunk_info(0)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"no gzip at all")
    assert describe(path, "--out", tmp_path / "out") == 2
    assert re.search(r"dask_coop: error: .*x.h5: cannot read all of it", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_figure_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_describe, "summarize", None)
    (tmp_path / "moon-histogram.png").mkdir()
    assert describe(MOON, "--out", tmp_path) == 2
    assert "moon-histogram.png is a folder; name another" in capsys.readouterr().err


def test_a_full_disk_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask_coop.cli.describe import figures, page

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figures, "save_summary", full)
    monkeypatch.setattr(page, "write", full)
    for option in (["--out", tmp_path], ["--html", tmp_path / "x.html"]):
        assert describe(MOON, *option) == 2
        said = f"dask_coop: error: {option[0]} {option[1]}: cannot write it: .*No space left"
        assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("option", [[], ["--json"], ["--quiet"]])
def test_no_file_is_written_unasked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert describe(folder / "normal.npy", *option) == 0
    assert not [*tmp_path.iterdir()]
    assert describe(folder / "normal.npy", "--figure", *option) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["normal-histogram.png"]


def test_a_folder_is_described_without_the_figures_of_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", NORMAL)
    monkeypatch.chdir(tmp_path)
    for pattern, count in ((".", 1), (".", 1), ("*", 1), ("x-histogram.png", 1)):
        capsys.readouterr()
        assert describe(pattern, "--figure", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found) == count
    assert found[0]["name"] == "x-histogram.png"


def test_an_interrupt_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_describe, "summarize", interrupted)
    assert describe(MOON, "--out", tmp_path) == 130
    assert capsys.readouterr().err == "\n"


def test_a_pass_is_one_computation() -> None:
    calls = []

    def compute(*arrays: Any) -> list[Any]:
        calls.append(len(arrays))
        return [array.compute(scheduler="synchronous") for array in arrays]

    x = open_source(MOON).array.astype("f4")
    assert summarize(x, 256, None, compute).reads == 2
    assert calls == [7, 1]
    assert summarize(x, 256, (0.0, 255.0), compute).reads == 1
    assert calls == [7, 1, 9]
    assert summarize(x.astype("u1"), 256, None, compute).reads == 1
    assert calls == [7, 1, 9, 1]


def test_info_without_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "_gpus", lambda: ([], "there is no NVIDIA driver"))
    assert main.main(["info"]) == 0
    text = capsys.readouterr().out
    assert "GPUs: none (there is no NVIDIA driver)" in text
    assert "compute capability 7.0 (CUDA 12) or 7.5 (CUDA 13)" in text
    assert pip_install("cuda12") in text
    assert re.search(rf"^  dask_coop +{re.escape(dask_coop.__version__)}$", text, re.MULTILINE)
    assert re.search(rf"^  NumPy +{re.escape(np.__version__)}$", text, re.MULTILINE)


def test_info_of_this_machine_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == info.facts()
    assert facts["configuration"]["coop.fallback"] == "allow"
    assert facts["threads"] >= 1
    assert bool(facts["gpus"]) == (facts["no_gpu"] is None)
    assert facts["versions"]["NumPy"] == np.__version__


def test_info_says_where_numba_keeps_its_loops(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    code = "from dask_coop.cli.main import main; main(['info'])"
    text = printed("-c", code, NUMBA_CACHE_DIR=tmp_path)
    (folder,) = re.findall(r"^compiled loops over NumPy chunks: (.*)$", text, re.MULTILINE)
    assert Path(folder).parent == tmp_path
    assert re.search(rf"^  Numba +{re.escape(version('numba'))}$", text, re.MULTILINE)


def test_info_says_what_numba_would_give(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "find_spec", lambda name: None)
    monkeypatch.setitem(info.PACKAGES, "Numba", ("there-is-no-such-package",))
    assert main.main(["info"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  Numba +not installed$", text, re.MULTILINE)
    (said,) = [line for line in text.splitlines() if line.startswith("compiled loops")]
    assert pip_install("cpu") in said
    assert "histograms, statistics and scans" in said


def test_a_gpu_is_asked_through_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    attributes = driver.CUdevice_attribute
    answers = {
        attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
        attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
        attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 132,
        attributes.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: 1,
    }
    ok = driver.CUresult.CUDA_SUCCESS
    for name, answer in {
        "cuInit": lambda flags: (ok,),
        "cuDeviceGetCount": lambda: (ok, 2),
        "cuDeviceGetName": lambda length, device: (ok, b"NVIDIA H200\0\0"),
        "cuDeviceTotalMem": lambda device: (ok, 2**37),
        "cuDeviceGetAttribute": lambda code, device: (ok, answers.get(code, 0)),
        "cuDeviceGetP2PAttribute": lambda kind, i, j: (ok, int(i < j)),
        "cuDriverGetVersion": lambda: (ok, 12080),
    }.items():
        monkeypatch.setattr(driver, name, answer)
    facts = info.facts()
    gpu = facts["gpus"][1]
    assert (gpu["name"], gpu["compute_capability"]) == ("NVIDIA H200", "9.0")
    assert (gpu["memory"], gpu["multiprocessors"]) == (2**37, 132)
    assert (gpu["cooperative_launch"], gpu["thread_block_clusters"]) == (True, False)
    assert facts["peers"]["access"] == [[None, True], [False, None]]
    assert facts["versions"]["driver"] == "CUDA 12.8"
    assert json.loads(json.dumps(facts)) == facts

    bad = driver.CUresult.CUDA_ERROR_NO_DEVICE
    monkeypatch.setattr(driver, "cuInit", lambda flags: (bad,))
    assert info.facts()["no_gpu"] == "the NVIDIA driver says CUDA_ERROR_NO_DEVICE"


def test_info_of_two_gpus() -> None:
    gpu = {
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "memory": 139 * 2**30,
        "multiprocessors": 132,
        "shared_memory_per_block": 227 * 2**10,
        "l2_cache": 60 * 2**20,
        "cooperative_launch": True,
        "cooperative_multi_device_launch": False,
        "thread_block_clusters": True,
    }
    text = info.as_text(
        {
            "gpus": [gpu, gpu],
            "no_gpu": None,
            "peers": {"access": [[None, True], [True, None]]},
            "versions": {"CuPy": "14.2.0", "NVRTC": None},
            "cache": "/cache",
            "loops": "/loops",
            "threads": 8,
            "configuration": {"coop.engine": "auto", "coop.threads": 2},
            "variables": {"DASK_COOP_CACHE": "/cache"},
            "unread": "nothing reads coop.enigne",
            "slow": ["this, because of that"],
        }
    )
    for line in (
        r"GPU 1: NVIDIA H200",
        r"  compute capability +9\.0",
        r"  memory +139\.0 GiB",
        r"  shared memory per block +227 KiB",
        r"  cooperative multi device launch +no",
        r"  thread block clusters +yes",
        r"peer access \(row reaches column\):\n +0 +1\n 0 +- +yes\n 1 +yes +-",
        r"  NVRTC +not installed",
        r"compiled kernels: /cache",
        r"processors: 8",
        r"  coop.engine +auto",
        r"  coop.threads +2 \(default: auto\)",
        r"  DASK_COOP_CACHE +/cache",
        r"  nothing reads coop.enigne",
        r"what is slow here:\n  - this, because of that",
    ):
        assert re.search(f"^{line}$", text, flags=re.MULTILINE), line


#: Facts of a machine on which nothing is slow.
FAST: dict[str, Any] = {
    "gpus": [{"name": "NVIDIA H200"}],
    "peers": {"access": [[None]]},
    "versions": {"Numba": "0.65", "CuPy": "14.2.0", "kvikio": "26.10"},
    "cache": "/cache",
    "loops": "/loops",
    "threads": 8,
    "scheduler": None,
    "configuration": {"coop.threads": "auto"},
    "variables": {"DASK_COOP_CACHE": "/cache", "NUMBA_DISABLE_JIT": "0"},
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"loops": "none: no folder can be written, so"}, "set NUMBA_CACHE_DIR"),
        ({"versions": {**FAST["versions"], "Numba": None}}, pip_install("cpu")),
        ({"variables": {"NUMBA_DISABLE_JIT": "1"}}, "NUMBA_DISABLE_JIT is set; unset it"),
        ({"threads": 1}, "this process has one processor"),
        ({"configuration": {"coop.threads": 1}}, "coop.threads is 1; set it to auto"),
        ({"scheduler": "synchronous"}, "Dask's scheduler is 'synchronous'"),
        ({"versions": {**FAST["versions"], "CuPy": None}}, pip_install("cuda12")),
        ({"cache": "none: it is no folder"}, "(it is no folder); set DASK_COOP_CACHE"),
        ({"variables": {"DASK_COOP_PORTABLE": "1"}}, "DASK_COOP_PORTABLE is set; unset it"),
        ({"peers": {"access": [[None, False], [True, None]]}}, "cannot reach each other's"),
        ({"versions": {**FAST["versions"], "kvikio": None}}, "kvikio is not installed"),
        ({"gpus": [], "cache": "none: it is no folder"}, None),
    ],
)
def test_what_is_slow_is_said_with_what_to_do(changed: dict[str, Any], said: str | None) -> None:
    found = [*advice.advise(FAST | changed)]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_info_tells_the_configuration_in_force(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASK_COOP_CACHE", "/there")
    with dask.config.set({"coop.fallback": "warn", "coop.enigne": 1, "scheduler": "sync"}):
        assert main.main(["info"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  coop.fallback +warn \(default: allow\)$", text, re.MULTILINE)
    assert re.search(r"^  DASK_COOP_CACHE +/there$", text, re.MULTILINE)
    assert "coop.enigne, which nothing reads; did you mean coop.engine" in text
    assert "because Dask's scheduler is 'sync'" in text


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 0
    text = capsys.readouterr().out
    assert "describe" in text
    assert "info" in text


# From here on in processes of their own.


def test_the_module_runs(folder: Path, tmp_path: Path) -> None:
    done = python("-m", "dask_coop", "describe", folder / "normal.npy", "--figure", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^backend: (NumPy, \d+ thread|CuPy \S+ on )", done.stdout, re.MULTILINE)
    assert_describes(done.stdout, NORMAL, 256)
    assert_is_figure(tmp_path / "normal-histogram.png")


def test_the_module_fails_in_one_line(folder: Path, tmp_path: Path) -> None:
    done = python("-m", "dask_coop", "describe", "absent.npy", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "dask_coop: error: absent.npy: no such file; check the path\n"
    assert done.stdout == ""


def test_the_version(tmp_path: Path) -> None:
    done = python("-m", "dask_coop", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"dask_coop {dask_coop.__version__}\n")


def test_the_command_is_named_as_it_was_typed(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["dask-coop"].split(":")
    # What installers write.
    script = tmp_path / "bin" / "dask-coop"
    script.parent.mkdir()
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    (tmp_path / "mine.py").write_text("print('mine, by its name')\n")
    told = [python(script, *said, cwd=tmp_path) for said in (["describe", "--help"], ["draw"])]
    assert told[0].stdout.startswith("usage: dask-coop describe [-h]")
    assert told[1].stderr.endswith("see `dask-coop --help`\n")
    assert python(script, "run", "-m", "mine", cwd=tmp_path).stdout == "mine, by its name\n"
    asked = python("-m", "dask_coop", "draw", cwd=tmp_path)
    assert asked.stderr.endswith("see `python -m dask_coop --help`\n")


def test_a_bar_is_shown_on_a_terminal_and_lines_elsewhere(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends._Lines, "every", 0.0)
    assert describe(folder / "normal.npy", "--chunks", "50", "--out", tmp_path) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"\d+% done, \d+ s left", line) for line in lines)
    assert "100% done, 0 s left" in lines
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert describe(folder / "normal.npy", "--chunks", "50", "--out", tmp_path) == 0
    text, progress = capsys.readouterr()
    assert "100% Completed" in progress
    assert "Completed" not in text


def test_a_cluster_of_processes(folder: Path, tmp_path: Path) -> None:
    sources = [folder / "one.h5", folder / "nan.npy", folder / "array.zarr"]
    options = ["--cluster", "--cpu", "--chunks", "100", "--out", "."]
    done = python("-m", "dask_coop", "describe", *sources, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reports = done.stdout.split("\n\n")[:3]
    assert len(reports) == 3
    for report in reports:
        assert re.search(r"^backend: LocalCluster, \d+ process(es)?$", report, re.MULTILINE)
        assert_describes(report, WITH_NAN, 256)
    assert "Completed" not in done.stderr
    assert "Traceback" not in done.stderr
    for name in ("one-data", "nan", "array"):
        assert_is_figure(tmp_path / f"{name}-histogram.png")


def test_packages_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    program = f"""
import sys
from dask_coop.cli.main import main

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, missing := Missing())
for missing.name, source in {{"matplotlib": "normal.npy", "h5py": "one.h5",
                             "skimage": "picture.png", "zarr": "array.zarr"}}.items():
    assert main(["describe", {str(folder)!r} + "/" + source, "--cpu", "--figure"]) == 2
"""
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        f"dask_coop: error: the package {name} is not installed; run `{pip_install('cli')}`"
        for name in ("matplotlib", "h5py", "scikit-image", "zarr")
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize("both", ["", "2>&1"], ids=["stdout", "stderr too"])
def test_a_closed_pipe_ends_quietly_and_figures_are_written(
    folder: Path, tmp_path: Path, both: str
) -> None:
    line = f"{{ {sys.executable} -m dask_coop describe --cpu {folder / 'normal.npy'} "
    line += f"{folder / 'flags.npy'} --figure {both}; echo $? > status; }} | head -1"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=beside(), capture_output=True, text=True
    )
    assert done.stdout == f"source: {folder / 'normal.npy'}\n"
    assert "rror" not in done.stderr
    assert (tmp_path / "status").read_text() == "0\n"
    for name in ("normal", "flags"):
        assert_is_figure(tmp_path / f"{name}-histogram.png")


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize("asked", ["", "--help", "info"])
def test_what_nobody_reads_is_no_error(tmp_path: Path, asked: str) -> None:
    # The reader is gone before anything is printed.
    line = f"{{ sleep 1; {sys.executable} -m dask_coop {asked}; echo $? > status; }} | true"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=beside(), capture_output=True)
    assert done.stderr == b""
    assert (tmp_path / "status").read_text() == "0\n"


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signal")
def test_ctrl_c(tmp_path: Path) -> None:
    shape = (2**17, 2**17)  # 128 GiB, a hole in the file
    np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype="f8", shape=shape).flush()
    # A shell that starts pytest in the background makes its children deaf to the signal.
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program += "; from dask_coop.cli.main import main; sys.exit(main())"
    arguments = ["describe", "x.npy", "--cpu", "--chunks", "2048"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env=beside(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert any(line.startswith("backend:") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.gpu
def test_a_gpu_gives_the_same_table(folder: Path, tmp_path: Path) -> None:
    if not info.cupy_gpus():
        pytest.skip("GPU tests need CuPy and an NVIDIA GPU")
    for options, engine in (([], "CuPy "), (["--cluster"], "LocalCUDACluster, ")):
        done = python(*("-m", "dask_coop", "describe", folder / "nan.npy", *options), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"backend: {engine}" in done.stdout
        assert_describes(done.stdout, WITH_NAN, 256)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, 'pip install "dask-coop[cpu]"'),
        ({"url": "file:///src/a%20b", "dir_info": {}}, 'pip install "/src/a b[cpu]"'),
        (
            {"url": "file:///src", "dir_info": {"editable": True}},
            'pip install -e "/src[cpu]"',
        ),
        (
            {"url": "file:///w/d.whl", "archive_info": {}},
            'pip install "dask-coop[cpu] @ file:///w/d.whl"',
        ),
        (
            {"url": "https://a/b", "vcs_info": {"vcs": "git", "commit_id": "f00"}},
            'pip install "dask-coop[cpu] @ git+https://a/b@f00"',
        ),
    ],
)
def test_the_command_that_adds_an_extra_is_that_of_the_installation(
    monkeypatch: pytest.MonkeyPatch, origin: Any, command: str
) -> None:
    written = None if origin is None else json.dumps(origin)
    found = SimpleNamespace(read_text=lambda name: written)
    monkeypatch.setattr(metadata, "distribution", lambda name: found)
    assert pip_install.__wrapped__("cpu") == command


def test_a_checkout_on_the_path_is_installed_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", absent)
    checkout = Path(dask_coop.__file__).parents[1]
    assert pip_install.__wrapped__("cpu") == f'pip install -e "{checkout}[cpu]"'

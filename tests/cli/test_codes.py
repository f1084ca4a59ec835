"""Arrays of few different values are summarised in one read, as others are in several."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from support.processes import printed

from dask_coop.cli import main
from dask_coop.cli.describe import summaries
from dask_coop.cli.describe.codes import Codes, Counted, find_codes
from dask_coop.cli.describe.decoding import decode
from dask_coop.cli.describe.sources import join, open_sources, split
from dask_coop.cli.describe.summaries import QUANTILES, Summary, summarize
from dask_coop.errors import UserError

h5py = pytest.importorskip("h5py")
pytest.importorskip("xarray")

RNG = np.random.default_rng(11)
KELVIN = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-32767)}

#: What is stored: its dtype, how it is packed, and the dtype that it stands for.
STORED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bool": ("?", {}, "?"),
    "int8": ("i1", {}, "i1"),
    "uint8": ("u1", {}, "u1"),
    "int16": ("i2", {}, "i2"),
    "uint16": ("u2", {}, "u2"),
    "big-endian": (">i2", {}, "i2"),
    "kelvin": ("i2", KELVIN, "f8"),
    "kelvin, big-endian": (">i2", KELVIN, "f8"),
    "float32": ("i2", {"scale_factor": np.float32(0.1), "_FillValue": np.int16(7)}, "f4"),
    "downwards": ("i2", {"scale_factor": -0.3, "missing_value": np.int16(5)}, "f8"),
    "8 bits": ("u1", {"scale_factor": 1 / 255, "_FillValue": np.uint8(255)}, "f8"),
    "unsigned": ("i1", {"_Unsigned": "true"}, "u1"),
    "only a fill value": ("u2", {"_FillValue": np.uint16(3)}, "f4"),
    "one value for all": ("i2", {"scale_factor": 0.0, "add_offset": 4.0}, "f8"),
    "huge": ("i2", {"scale_factor": 1e300}, "f8"),
    "truths": ("i1", {"dtype": "bool"}, "?"),
}


def stored_values(dtype: str) -> Any:
    bell = RNG.normal(0, 3000 if np.dtype(dtype).itemsize == 2 else 30, (7, 5, 11))
    if np.dtype(dtype).kind == "b":
        return bell > 0
    bell = np.abs(bell) if np.dtype(dtype).kind == "u" else bell
    values = bell.astype(np.dtype(dtype).newbyteorder("="))
    least, most = np.iinfo(values.dtype).min, np.iinfo(values.dtype).max
    # The ends, and what stands for nothing.
    values[0, 0, :6] = least, most, 7, 5, 3, max(least, -32767)
    return values.astype(dtype)


def sources(name: str) -> tuple[da.Array, Codes]:
    """Return the elements, and their codes."""
    dtype, attributes, element = STORED[name]
    values = stored_values(dtype)
    if name == "truths":
        values = (values > 0).astype("i1")
    raw = da.from_array(values, chunks=(3, 5, 4))
    x = decode(raw, attributes)[0] if attributes else raw.astype(raw.dtype.newbyteorder("="))
    codes = find_codes(raw, attributes)
    assert codes is not None
    assert x.dtype == element
    return x, codes


def by_elements(x: da.Array, bins: int, limits: Any) -> Summary:
    """Summarise by several reads."""
    short = x.dtype.kind == "b"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summaries, "find_codes", lambda _: None)
        summary = summarize(x.astype("u1") if short else x, bins, limits, dask.compute)
    if not short:
        return summary
    q = np.quantile(x.compute(), [*QUANTILES.values()], method="inverted_cdf")
    ends = {name: bool(summary.statistics[name]) for name in ("min", "max")}
    return replace(
        summary,
        statistics=summary.statistics | ends,
        quantiles=dict(zip(QUANTILES, q.tolist(), strict=True)),
    )


def assert_equal(summary: Summary, expected: Summary) -> None:
    """Hold all that is found in one read to what several reads find."""
    assert summary.quantiles == expected.quantiles
    for name in ("count", "nans", "min", "max"):
        assert summary.statistics[name] == expected.statistics[name]
        assert type(summary.statistics[name]) is type(expected.statistics[name])
    # The deviations of a float32 are those of its float64.
    bound = (
        1e-6 if np.float32(expected.statistics["mean"]) == expected.statistics["mean"] else 1e-13
    )
    for name in ("mean", "std"):
        assert summary.statistics[name] == pytest.approx(expected.statistics[name], rel=bound)
    assert summary.counts.dtype == expected.counts.dtype
    np.testing.assert_array_equal(summary.counts, expected.counts)
    np.testing.assert_array_equal(summary.edges, expected.edges)
    assert (summary.below, summary.single) == (expected.below, expected.single)
    assert summary.origin is expected.origin is None


@pytest.mark.parametrize("limits", [None, (-2.0, 40.5)], ids=["all", "range"])
@pytest.mark.parametrize("bins", [1, 256, 70_000])
@pytest.mark.parametrize("name", STORED)
@pytest.mark.filterwarnings("ignore:.*overflow:RuntimeWarning")
def test_one_read_finds_what_several_do(name: str, bins: int, limits: Any) -> None:
    x, codes = sources(name)
    if name.startswith("kelvin") and limits:
        limits = (273.0, 290.0)
    outcomes = []
    for way in (
        lambda: by_elements(x, bins, limits),
        lambda: summarize(x, bins, limits, dask.compute, codes),
    ):
        try:
            outcomes.append(way())
        except UserError as error:
            outcomes.append(str(error))
    expected, summary = outcomes
    if isinstance(expected, str) or isinstance(summary, str):
        assert summary == expected
        return
    assert_equal(summary, expected)
    assert (summary.reads, summary.nbytes) == (1, x.size * codes.stored.itemsize)


def test_each_chunk_is_read_once() -> None:
    made = []

    def make(block_id: Any) -> Any:
        made.append(block_id)
        return np.random.default_rng(block_id).integers(-300, 300, 1000).astype("i2")

    raw = da.map_blocks(make, chunks=((1000,) * 5,), dtype="i2", meta=np.zeros(0, "i2"))
    x = decode(raw, KELVIN)[0]
    summary = summarize(x, 256, None, dask.compute, find_codes(raw, KELVIN))
    assert len(made) == 5
    assert summary.reads == 1
    assert_equal(summary, by_elements(x, 256, None))


@pytest.mark.parametrize("fill", [[], [-32767] * 4])
def test_where_nothing_but_fill_values_is_stored_that_is_said(fill: list[int]) -> None:
    raw = da.from_array(np.array([-32767, *fill], "i2"))
    x = decode(raw, KELVIN)[0]
    with pytest.raises(UserError, match=rf"all {1 + len(fill)} values are NaN; there is nothing"):
        summarize(x, 256, None, dask.compute, find_codes(raw, KELVIN))


def test_infinite_values_are_counted_apart() -> None:
    raw, attributes = (
        da.from_array(np.array([-3, 0, 5], "i2")),
        {"scale_factor": np.inf, "add_offset": 1.0, "_FillValue": np.int16(9)},
    )
    x = decode(raw, attributes)[0]
    codes = find_codes(raw, attributes)
    with pytest.raises(UserError, match="all 3 values are NaN or infinite; there is nothing"):
        summarize(x, 256, None, dask.compute, codes)
    for values in ([1.0, 2.0, np.inf], [-np.inf, 0.5, np.inf], [-1e308, 0.0, 1e308]):
        expected = by_elements(da.from_array(values), 4, (0.0, 4.0))
        found = Counted.of(np.array(values), np.array([1, 1, 1]))
        np.testing.assert_equal(found.statistics(), expected.statistics)
        assert found.infinite == expected.infinite == np.isinf(values).sum()


def test_sums_of_many_equal_values_are_exact() -> None:
    # Of 2**53 elements; no array of them is needed.
    counts = np.array([2**52, 2**52 - 2])
    found = Counted.of(np.array([0.1, 0.3]), counts).statistics()
    assert found["count"] == 2**53 - 2
    assert found["mean"] == pytest.approx(0.2, rel=1e-15)
    assert found["std"] == pytest.approx(0.1, rel=1e-15)


def test_longer_integers_and_floats_have_no_codes() -> None:
    for dtype in ("i4", "u8", "f2", "f4", "M8[s]"):
        assert find_codes(da.zeros(3, dtype="i8", chunks=2).astype(dtype)) is None


# By the command.


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what describes files of the folder, and returns all that is printed."""

    def tell(*arguments: Any) -> str:
        (tmp_path / "out").mkdir(exist_ok=True)
        options = ["--cpu", "--out", tmp_path / "out"]
        assert main.main(["describe", *map(str, [*arguments, *options])]) == 0
        return capsys.readouterr().out

    return tell


def save(path: Path, values: Any, attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        file["t"] = values
        file["t"].attrs.update(attributes)
    return path


def test_the_command_reads_once_and_says_how_much(tmp_path: Path, told: Callable[..., str]) -> None:
    raw = np.array([[1, 2, -32767, 4], [5, 6, 7, 8]], "i2")
    path = save(tmp_path / "x.nc", raw, KELVIN)
    text = told(path, "--chunks", 2)
    assert "dtype: float64" in text
    assert re.search(r"^time: .* s for 1 read of 16 B, ", text, re.MULTILINE)
    (found,) = json.loads(told(path, "--json"))
    values = raw[raw > 0] * 0.01 + 273.15
    assert (found["count"], found["nans"], found["reads"]) == (7, 1, 1)
    assert found["quantiles"]["0.5"] == np.median(values)
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-15)


def test_indices_of_an_axis_have_codes_of_their_own(tmp_path: Path) -> None:
    raw = np.arange(24, dtype="i2").reshape(2, 3, 4)
    path = save(tmp_path / "x.nc", raw, KELVIN)
    (source,) = open_sources([str(path)], None, 2, str(tmp_path))
    for number, index in enumerate(split(source, 1)):
        summary = summarize(index.array, 9, None, dask.compute, index.codes)
        values = raw[:, number] * 0.01 + 273.15
        assert (summary.reads, summary.statistics["count"]) == (1, 8)
        assert summary.statistics["max"] == values.max()


def test_packed_integers_are_read_once_with_query_planning_too(tmp_path: Path) -> None:
    save(tmp_path / "x.nc", np.arange(24, dtype="i2").reshape(2, 12), KELVIN)
    arguments = ("describe", "--cpu", "--json", "--chunks", "5", "--each", "0", "x.nc")
    text = printed("-m", "dask_coop", *arguments, cwd=tmp_path, DASK_ARRAY__QUERY_PLANNING="true")
    facts = json.loads(text)
    assert [(each["count"], each["reads"]) for each in facts] == [(12, 1)] * 2
    assert facts[1]["max"] == 23 * 0.01 + 273.15


@pytest.mark.parametrize("scale", [0.01, 0.02])
def test_files_are_joined_by_their_codes_only_if_these_mean_the_same(
    tmp_path: Path, scale: float
) -> None:
    raw = np.arange(12, dtype="i2")
    first = save(tmp_path / "1.nc", raw, KELVIN)
    second = save(tmp_path / "2.nc", raw + 90, {**KELVIN, "scale_factor": scale})
    joined = join(open_sources([str(first), str(second)], None, 5, str(tmp_path)))
    assert (joined.codes is None) == (scale != 0.01)
    summary = summarize(joined.array, 9, None, dask.compute, joined.codes)
    values = np.concatenate([raw * 0.01, (raw + 90) * scale]) + 273.15
    assert summary.statistics["max"] == values.max()
    assert summary.statistics["mean"] == pytest.approx(values.mean(), rel=1e-14)


@pytest.mark.parametrize("name", ["bool", "int16", "kelvin", "unsigned"])
def test_codes_are_counted_on_chunks_of_either_kind(xp: ModuleType, name: str) -> None:
    x, codes = sources(name)
    moved = codes.like(
        codes.array.map_blocks(xp.asarray, meta=xp.empty((0, 0, 0), codes.array.dtype))
    )

    def compute(*arrays: Any) -> list[Any]:
        return [array if xp is np else array.get() for array in dask.compute(*arrays)]

    summary = summarize(x, 256, None, compute, moved)
    assert_equal(summary, by_elements(x, 256, None))

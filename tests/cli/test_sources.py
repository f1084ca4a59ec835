"""What sources stand for: folders, patterns, tables, URLs, stdin; apart, and as one array."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.processes import beside

from dask_coop.cli import main
from dask_coop.cli.describe.pictures import SOFTWARE
from dask_coop.cli.describe.sources import UserError, join, open_sources, split

VALUES = np.arange(60, dtype="i4").reshape(5, 12)


def opened(tmp_path: Path, *texts: Any, dataset: str | None = None, chunks: Any = "auto") -> Any:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return open_sources([*map(str, texts)], dataset, chunks, str(scratch))


def same(source: Any, values: Any) -> None:
    found = source.array.compute(scheduler="synchronous")
    np.testing.assert_array_equal(found, values)
    assert found.dtype == source.array.dtype == np.asarray(values).dtype


def save_pictures(folder: Path, **pictures: Any) -> None:
    io = pytest.importorskip("skimage.io")
    folder.mkdir(exist_ok=True)
    for name, values in pictures.items():
        io.imsave(folder / f"{name}.png", values, check_contrast=False)


def test_the_pictures_of_a_folder(tmp_path: Path) -> None:
    grey = VALUES.astype("u1")
    save_pictures(tmp_path / "pictures", b=grey + 1, a=grey)
    (tmp_path / "pictures" / "notes.txt").write_text("no picture")
    (tmp_path / "pictures" / "own.png").write_bytes(SOFTWARE.encode())
    a, b = opened(tmp_path, tmp_path / "pictures")
    assert a.notes == (
        f"skipped in {tmp_path / 'pictures'}: notes.txt (unknown extension), own.png (figures of "
        "this command)",
    )
    assert (a.name, b.name) == ("a.png", "b.png")
    assert a.text == str(tmp_path / "pictures" / "a.png")
    same(a, grey)
    same(b, grey + 1)
    # Pictures are not held in memory.
    assert len(json.dumps([*map(str, a.array.dask.values())])) < 2000
    for chunks in (2, (2, 5)):
        same(opened(tmp_path, tmp_path / "pictures", chunks=chunks)[0], grey)


def test_a_folder_has_what_can_be_described_and_tells_the_rest(tmp_path: Path) -> None:
    frame = save_csv(tmp_path / "a.csv")
    np.save(tmp_path / "b.npy", VALUES)
    np.save(tmp_path / "text.npy", np.array(["a"]))
    (tmp_path / "deep").mkdir()
    for number in range(7):
        (tmp_path / f"{number}.txt").touch()
    sources = open_sources([str(tmp_path)], None, "auto", "")
    assert [source.name for source in sources] == ["a.csv/day", "a.csv/rain", "a.csv/wet", "b.npy"]
    same(sources[0], frame["day"].to_numpy())
    assert sources[0].notes[-1] == (
        f"skipped in {tmp_path}: 0.txt, 1.txt, 2.txt, 3.txt, 4.txt, 2 more (unknown extension), "
        "deep (a folder), text.npy (the dtype <U1 cannot be described)"
    )


def save_zarr(data: Any, path: Path) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    data.to_zarr(path, consolidated=False)


def save_netcdf4(data: Any, path: Path) -> None:
    pytest.importorskip("h5netcdf")
    data.to_netcdf(path, engine="h5netcdf")


def save_netcdf3(data: Any, path: Path) -> None:
    data.to_netcdf(path, engine="scipy", format="NETCDF3_CLASSIC")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "save"), [("x.zarr", save_zarr), ("x.nc", save_netcdf4), ("x.nc", save_netcdf3)]
)
def test_all_variables_but_coordinates_are_described(tmp_path: Path, name: str, save: Any) -> None:
    xarray = pytest.importorskip("xarray")
    data = xarray.Dataset(
        {
            "rain": (("t", "x"), VALUES),
            "who": (("x",), np.array(list("abcdefghijkl"), "S1")),
            "wind": (("t", "x"), VALUES / 2),
        },
        {"t": np.arange(5.0)},
    )
    save(data, tmp_path / name)
    rain, wind = opened(tmp_path, tmp_path / name)
    assert (rain.name, wind.name) == (f"{name}/rain", f"{name}/wind")
    same(rain, VALUES)
    same(wind, VALUES / 2)
    (note,) = rain.notes
    # The coordinates of netCDF 4 have more names: those of dimensions.
    assert re.match(r"left out: .*\bt\b.* \(coordinates\), who \(the dtype .S1 cannot be", note)
    (time,) = opened(tmp_path, tmp_path / name, dataset="t")
    same(time, np.arange(5.0))
    with pytest.raises(UserError, match=r"who: the dtype .S1 cannot be described; convert"):
        opened(tmp_path, tmp_path / name, dataset="who")
    data[["who"]].assign(whom=data.who).to_netcdf(tmp_path / "texts.nc", engine="scipy")
    with pytest.raises(UserError, match=r"none of its arrays can be described: who, whom \("):
        opened(tmp_path, tmp_path / "texts.nc")


def test_patterns_that_the_shell_has_left(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("x1.npy", "x2.npy", "deep/x3.npy", "y.npy"):
        np.save(tmp_path / name, VALUES)
    assert [s.name for s in opened(tmp_path, tmp_path / "x?.npy")] == ["x1.npy", "x2.npy"]
    found = opened(tmp_path, tmp_path / "**" / "x*.npy", tmp_path / "y.npy")
    assert [s.name for s in found] == ["x3.npy", "x1.npy", "x2.npy", "y.npy"]
    # What is there by that name is no pattern.
    np.save(tmp_path / "z[1].npy", VALUES)
    assert [s.name for s in opened(tmp_path, tmp_path / "z[1].npy")] == ["z[1].npy"]


def test_the_arrays_of_npz(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", one=VALUES, two=VALUES[0] / 2)
    one, two = opened(tmp_path, tmp_path / "x.npz", chunks=3)
    assert (one.name, one.stem) == ("x.npz/one", "x-one")
    same(one, VALUES)
    same(two, VALUES[0] / 2)
    (only,) = opened(tmp_path, tmp_path / "x.npz", dataset="two")
    same(only, VALUES[0] / 2)


def save_csv(path: Path) -> Any:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("dask.dataframe", exc_type=ImportError)
    frame = pandas.DataFrame(
        {"day": range(50), "town": ["x"] * 50, "rain": np.where(np.arange(50) % 7, 0.5, np.nan)}
    )
    frame["wet"] = frame["rain"] > 0
    frame.to_csv(path, index=False)
    return frame


def test_the_columns_of_csv(tmp_path: Path) -> None:
    frame = save_csv(tmp_path / "x.csv")
    sources = opened(tmp_path, tmp_path / "x.csv", chunks=9)
    assert [source.name for source in sources] == ["x.csv/day", "x.csv/rain", "x.csv/wet"]
    for source, name in zip(sources, ("day", "rain", "wet"), strict=True):
        same(source, frame[name].to_numpy())
        assert source.array.chunksize == (9,)
    (note,) = sources[0].notes
    assert note.startswith("columns left out: town (str")
    (only,) = opened(tmp_path, tmp_path / "x.csv", dataset="rain")
    same(only, frame["rain"].to_numpy())


@pytest.mark.parametrize("text", ["x;y\n1;2,5\n3;4,5\n", "x,y\n1,2,5\n3,4,5\n"])
def test_a_table_with_more_fields_than_names_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(UserError, match="its rows have more fields than its header; fields are"):
        opened(tmp_path, tmp_path / "x.csv")


def test_tables_in_parts_of_several_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = pytest.importorskip("dask.dataframe", exc_type=ImportError)
    monkeypatch.setattr(frames, "read_csv", partial(frames.read_csv, blocksize=200, sample=100))
    lines = [f"{n},{n}\n" for n in range(200)]
    (tmp_path / "x.csv").write_text("a,b\n" + "".join(lines))
    (tmp_path / "gaps.csv").write_text("a,b\n" + "".join(lines) + ",200\n")
    (tmp_path / "text.csv").write_text("a,b\n" + "".join(lines) + "1,x\n")
    a, b = opened(tmp_path, tmp_path / "x.csv")
    assert a.array.npartitions > 2
    same(a, np.arange(200))
    same(b, np.arange(200))
    a, b = opened(tmp_path, tmp_path / "gaps.csv")
    same(a, np.append(np.arange(200.0), np.nan))
    same(b, np.arange(201.0))
    assert a.notes == ("whole numbers are read as float64, for dtypes change within the file",)
    with pytest.raises(UserError, match=r"(?s)cannot read this as a table: Mismatched.*'x'"):
        opened(tmp_path, tmp_path / "text.csv")


def test_joined_sources_are_one_array(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"x{number}.npy", VALUES[: number + 2] + number)
    source = join(opened(tmp_path, tmp_path / "x*.npy"))
    assert (source.name, source.stem) == ("x0.npy and 2 more", "x0 and 2 more")
    same(source, np.concatenate([VALUES[:2], VALUES[:3] + 1, VALUES[:4] + 2]))
    (alone,) = opened(tmp_path, tmp_path / "x0.npy")
    assert join([alone]) is alone


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (VALUES[:, 1:], r"their shapes are \(5, 11\) and \(5, 12\), and only the first"),
        (VALUES[0], r"their shapes are \(12,\) and \(5, 12\)"),
        (VALUES / 2, "their dtypes are float64 and int32; leave out --join"),
    ],
)
def test_what_does_not_fit_is_not_joined(tmp_path: Path, values: Any, message: str) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    np.save(tmp_path / "y.npy", values)
    with pytest.raises(UserError, match=f"--join: .*y.npy cannot follow .*x.npy: {message}"):
        join(opened(tmp_path, tmp_path / "x.npy", tmp_path / "y.npy"))


def test_single_values_are_not_joined(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float64(3))
    with pytest.raises(UserError, match="leave out --join"):
        join(opened(tmp_path, *[tmp_path / "x.npy"] * 2))


@pytest.fixture
def memory() -> Any:
    """Return fsspec's file system in this process, empty."""
    MemoryFileSystem.store.clear()
    yield MemoryFileSystem()
    MemoryFileSystem.store.clear()


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_files_are_fetched(tmp_path: Path, memory: Any, protocol: str) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    np.savez(tmp_path / "y.npz", a=VALUES + 1)
    folder = "/far" if protocol == "memory" else str(tmp_path)
    if protocol == "memory":
        for name in ("x.npy", "y.npz"):
            memory.put_file(str(tmp_path / name), f"/far/{name}")
    x, y = opened(tmp_path, f"{protocol}://{folder}/x.npy", f"{protocol}://{folder}/y.npz")
    assert (x.name, y.name) == ("x.npy", "y.npz/a")
    assert (tmp_path / "scratch") in x.path.parents
    same(x, VALUES)
    same(y, VALUES + 1)


def test_zarr_elsewhere_is_read_where_it_is(tmp_path: Path, memory: Any) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    group = zarr.open_group("memory://far/x.zarr", mode="w")
    group.create_array("a", data=VALUES, chunks=(2, 5))
    (source,) = opened(tmp_path, "memory://far/x.zarr")
    assert source.name == "x.zarr/a"
    same(source, VALUES)
    assert not any((tmp_path / "scratch").iterdir())


def test_a_folder_of_zarr_needs_no_suffix(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    zarr.save_array(tmp_path / "x", VALUES)
    same(*opened(tmp_path, tmp_path / "x"), VALUES)


WRONG = {
    "nothing-in-a-folder": ("empty", "there is nothing to describe in this folder: it is empty"),
    "figures-alone": ("figures", r"in this folder: a.png \(figures of this command\)$"),
    "figures-fit": ("figures/*", "all files are figures of this command; to describe one, name it"),
    "no-file-fits": ("a*.npy", r"a\*.npy: no file fits this pattern"),
    "no-npz": ("absent.npz", "absent.npz: no such file"),
    "text-in-npz": ("text.npz", "text.npz: b: the dtype <U1 cannot be described"),
    "objects-in-npz": ("objects.npz", "objects.npz: cannot read this as .npz: .*pickle"),
    "damaged-npz": ("damaged.npz", "damaged.npz: cannot read this as .npz"),
    "text-in-csv": ("text.csv", r"text.csv: none of its columns holds numbers: town \("),
    "empty-csv": ("empty.csv", "empty.csv: cannot read this as a table"),
    "extension": ("x.mat", "'.mat' is not supported; use one of .npy, .*make a .npy of it"),
    "extension-of-url": ("https://example.org/x.mat", "'.mat' is not supported"),
    "protocol": ("nowhere://x/y.npy", "nowhere://x/y.npy: .*Protocol not known"),
    "absent-url": ("memory://far/absent.npy", "cannot fetch this: .*absent.npy; check"),
    "absent-zarr": ("memory://far/absent.zarr", "cannot open this as Zarr"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_sources_say_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any, case: str
) -> None:
    text, message = WRONG[case]
    if text.endswith(".csv"):
        pytest.importorskip("dask.dataframe", exc_type=ImportError)
    if text.endswith(".zarr"):
        pytest.importorskip("zarr", exc_type=ImportError)
    (tmp_path / "empty").mkdir()
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.png").write_bytes(SOFTWARE.encode())
    (tmp_path / "x.mat").write_text("")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "text.csv").write_text("town\nx\ny\n")
    (tmp_path / "damaged.npz").write_text("no zip")
    np.savez(tmp_path / "text.npz", b=np.array(["a"]))
    np.savez(tmp_path / "objects.npz", c=np.array([None]))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        opened(tmp_path, text)


def test_what_a_url_or_a_table_needs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s3fs", "dask.dataframe"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("x.npy", "x.zarr"):
        with pytest.raises(UserError, match=r"s3fs.*; run `pip install \"fsspec\[s3\]\"`"):
            opened(tmp_path, f"s3://bucket/{name}")
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(UserError, match=r"run `pip install \"dask\[dataframe\]\"`"):
        opened(tmp_path, tmp_path / "x.csv")


def test_a_dataset_that_a_table_lacks(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=VALUES, b=VALUES)
    with pytest.raises(UserError, match="there is no dataset c; give --dataset NAME, one of a, b"):
        opened(tmp_path, tmp_path / "x.npz", dataset="c")


def test_joined_pictures_are_described_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    grey = VALUES.astype("u1")
    save_pictures(tmp_path / "in", a=grey, b=grey + 100)
    out = tmp_path / "out"
    words = ["describe", "--cpu", "--join", "--json", str(tmp_path / "in"), "--out", str(out)]
    assert main.main(words) == 0
    (found,) = json.loads(capsys.readouterr().out)
    both = np.concatenate([grey, grey + 100])
    assert (found["count"], found["shape"]) == (both.size, [*both.shape])
    assert found["quantiles"]["0.5"] == np.median(both)
    assert [path.name for path in out.iterdir()] == ["a-and-1-more-histogram.png"]


def test_each_channel_is_described_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = np.stack([VALUES, VALUES * 2, VALUES + 100], axis=-1).astype("u1")
    save_pictures(tmp_path, a=picture)
    out = tmp_path / "out"
    words = ["describe", "--cpu", "--json", "--each", "-1", str(tmp_path / "a.png")]
    assert main.main([*words, "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found] == [f"a.png[:, :, {i}]" for i in range(3)]
    assert [one["source"] for one in found] == [f"{tmp_path}/a.png[:, :, {i}]" for i in range(3)]
    for i, one in enumerate(found):
        channel = picture[..., i]
        assert (one["min"], one["max"], one["count"]) == (channel.min(), channel.max(), 60)
        assert one["quantiles"]["0.5"] == np.median(channel)
    assert sorted(p.name for p in out.iterdir()) == [f"a-{i}-histogram.png" for i in range(3)]


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_the_parts_along_an_axis(tmp_path: Path, axis: int) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    (source,) = opened(tmp_path, tmp_path / "x.npy", chunks=2)
    for number, part in enumerate(split(source, axis)):
        same(part, np.take(VALUES, number, axis))


@pytest.mark.parametrize(
    ("values", "axis", "message"),
    [
        (VALUES, 2, r"there is no axis 2 for --each, as the shape is \(5, 12\); give one from -2"),
        (VALUES, -3, "there is no axis -3 for --each"),
        (np.float64(3), 0, "it is one value; leave out --each"),
        (np.zeros((2, 101)), 1, "axis 1 for --each is 101 long; give one of at most 100"),
    ],
)
def test_axes_that_are_not_taken_apart(
    tmp_path: Path, values: Any, axis: int, message: str
) -> None:
    np.save(tmp_path / "x.npy", values)
    (source,) = opened(tmp_path, tmp_path / "x.npy")
    with pytest.raises(UserError, match=message):
        split(source, axis)


@pytest.mark.parametrize("piped", [True, False])
def test_npy_on_stdin(tmp_path: Path, piped: bool) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "dask_coop", "describe", "--cpu", "-", "--json"]
    np.save(tmp_path / "x.npy", VALUES)
    given: dict[str, Any] = {"input": (tmp_path / "x.npy").read_bytes()}
    with (tmp_path / "x.npy").open("rb") as file:
        done = subprocess.run(
            command,
            **(given if piped else {"stdin": file}),
            cwd=tmp_path,
            env=beside(),
            capture_output=True,
        )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["name"], found["mean"]) == ("standard input", VALUES.mean())


def test_stdin_without_npy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(UserError, match=r"-: what comes in cannot be read as \.npy: "):
            opened(tmp_path, "-")
    with pytest.raises(UserError, match="--dataset a does not apply"):
        opened(tmp_path, "-", dataset="a")


@pytest.mark.parametrize("shape", ["(3,", "(10**15,)}", "(1000000000000000,)}", "(-1,)}", "'x'}"])
def test_a_damaged_header_on_stdin_is_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shape: str
) -> None:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}"
    header = text.encode().ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(24)
    (tmp_path / "x").write_bytes(data)
    with (tmp_path / "x").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(UserError, match=r"-: what comes in cannot be read as \.npy"):
            opened(tmp_path, "-")

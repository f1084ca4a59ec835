"""Zarr that is damaged or meant badly: nothing is unpickled, links end, lengths are true."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_coop.cli.describe.readers import open_file, open_source
from dask_coop.errors import UserError

zarr = pytest.importorskip("zarr", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")

VALUES = np.arange(60.0)


class _Touching:
    """What leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def refused(path: Any, dataset: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        open_source(str(path), dataset)
    return str(caught.value)


def save(path: Path, version: int = 3, **options: Any) -> Any:
    zarr.create_array(path, data=VALUES, chunks=(20,), zarr_format=version, **options)
    return json.loads((path / ("zarr.json" if version == 3 else ".zarray")).read_text())


@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "vlen-utf8", "vlen-array"])
def test_codecs_of_objects_are_refused_by_name_in_format_2(tmp_path: Path, codec: str) -> None:
    path, marker = tmp_path / "x.zarr", tmp_path / "unpickled"
    header = save(path, 2, compressors=None)
    (path / "0").write_bytes(pickle.dumps(_Touching(marker)))
    own, text = {"id": codec}, {"id": "vlen-utf8"}
    for more in (
        {"compressor": own},
        {"filters": [own]},
        {"filters": [text], "compressor": own, "dtype": "|O", "fill_value": ""},
    ):
        (path / ".zarray").write_text(json.dumps(header | more))
        assert "are Python objects, made by the codec" in refused(path)
    assert not marker.exists()
    pickle.loads((path / "0").read_bytes())
    assert marker.exists()


@pytest.mark.parametrize("name", ["pickle", "numcodecs.pickle", "https://x/numcodecs.json2"])
def test_codecs_of_objects_are_refused_by_name_in_format_3(tmp_path: Path, name: str) -> None:
    header = save(tmp_path / "x.zarr")
    bytes_, own = header["codecs"][0], {"name": name, "configuration": {}}
    sharded = {"chunk_shape": [5], "codecs": [bytes_, own], "index_codecs": [bytes_]}
    for codecs in (
        [own, bytes_],
        [bytes_, own],
        [{"name": "sharding_indexed", "configuration": sharded}],
    ):
        (tmp_path / "x.zarr" / "zarr.json").write_text(json.dumps(header | {"codecs": codecs}))
        said = f"the chunks of this array are Python objects, made by the codec {name!r}"
        assert said in refused(tmp_path / "x.zarr")
    # What people call their things is theirs.
    attributes = {"attributes": {"name": "json", "id": "pickle"}}
    (tmp_path / "x.zarr" / "zarr.json").write_text(json.dumps(header | attributes))
    found = open_source(str(tmp_path / "x.zarr")).array
    np.testing.assert_array_equal(found.compute(scheduler="synchronous"), VALUES)


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_an_array_of_objects_in_a_group_is_refused_also_elsewhere(
    tmp_path: Path, version: int, consolidated: bool
) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem()
    path = tmp_path / "x.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name in ("bad", "inner/good"):
        group.create_array(name, data=VALUES, chunks=(20,))
    if consolidated:
        zarr.consolidate_metadata(path)
    file = path / "bad" / ("zarr.json" if version == 3 else ".zarray")
    header = json.loads(file.read_text())
    more = (
        {"codecs": [*header["codecs"], {"name": "numcodecs.pickle"}]}
        if version == 3
        else {"filters": [{"id": "pickle"}]}
    )
    # Metadata that is consolidated does not tell.
    file.write_text(json.dumps(header | more))
    try:
        memory.put(str(path), "/x.zarr", recursive=True)
        for text in (path, "memory://x.zarr"):
            assert "the chunks of bad are Python objects" in refused(text, "bad")
            (other,) = open_file(str(text))
            assert other.notes[0].startswith("left out: bad (the chunks of bad are Python objects")
            found = open_source(str(text), "inner/good").array
            np.testing.assert_array_equal(found.compute(scheduler="synchronous"), VALUES)
    finally:
        memory.rm("/x.zarr", recursive=True)


def test_a_link_back_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    zarr.open_group(path, mode="w").create_array("a/b", data=VALUES)
    (path / "a" / "self").symlink_to(".")
    (path / "a" / "up").symlink_to("..")
    said = refused(path)
    assert "a/self is a link that leads back to a folder above it" in said
    # What is asked for needs no search.
    assert open_source(str(path), "a/b").array.shape == (60,)
    (path / "a" / "self").unlink()
    (path / "a" / "up").unlink()
    (path / "a" / "nowhere").symlink_to("nowhere")
    assert open_source(str(path)).name == "x.zarr/a/b"


def test_names_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    save(tmp_path / "secret.zarr")
    path = tmp_path / "x.zarr"
    zarr.open_group(path, mode="w").create_array("a", data=VALUES)
    zarr.consolidate_metadata(path)
    header = json.loads((path / "zarr.json").read_text())
    listed = header["consolidated_metadata"]["metadata"]
    listed["../secret.zarr"] = listed["/a"] = listed["a"]
    (path / "zarr.json").write_text(json.dumps(header))
    assert open_source(str(path)).name == "x.zarr/a"
    assert "there is no dataset ../secret.zarr" in refused(path, "../secret.zarr")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "zarr.json is damaged"),
        ("[1]", "it is no JSON object"),
        ('{"node_type": "array"}', "cannot open this as Zarr"),
        ('{"node_type": "group", "consolidated_metadata": {"metadata": 3}}', "no dataset in it"),
    ],
)
def test_damaged_metadata_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / "zarr.json").write_text(text)
    assert message in refused(tmp_path / "x.zarr")


def test_chunks_in_the_file_may_not_be_too_large(tmp_path: Path) -> None:
    header = save(tmp_path / "x.zarr")
    header["chunk_grid"]["configuration"]["chunk_shape"] = header["shape"] = [10**9]
    (tmp_path / "x.zarr" / "zarr.json").write_text(json.dumps(header))
    assert "stored in chunks of 8,000,000,000 bytes" in refused(tmp_path / "x.zarr")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("shards", [None, (60,)])
def test_blosc_that_lies_about_its_length_is_one_message(
    tmp_path: Path, version: int, shards: Any
) -> None:
    import numcodecs

    blosc = zarr.codecs.BloscCodec() if version == 3 else numcodecs.Blosc()
    options = {"shards": shards} if shards and version == 3 else {}
    save(tmp_path / "x.zarr", version, compressors=blosc, **options)
    array = open_source(str(tmp_path / "x.zarr")).array
    # Also where it has travelled.
    array = pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(array.compute(scheduler="synchronous"), VALUES)
    chunk = tmp_path / "x.zarr" / ("c/0" if version == 3 else "0")
    whole = chunk.read_bytes()
    begin = whole.index(struct.pack("<I", 160)) - 4
    for at, length, said in ((4, 2**30, "bytes come out, and"), (12, 2**31 - 1, "and there are")):
        lie = bytearray(whole)
        lie[begin + at : begin + at + 4] = struct.pack("<I", length)
        chunk.write_bytes(lie)
        with pytest.raises(OSError, match=said):
            array.compute(scheduler="synchronous")
    chunk.write_bytes(b"short")
    with pytest.raises(OSError, match="a chunk cannot be decoded"):
        array.compute(scheduler="synchronous")


def test_chunks_without_elements_are_one_message(tmp_path: Path) -> None:
    header = save(tmp_path / "x.zarr", 2)
    (tmp_path / "x.zarr" / ".zarray").write_text(json.dumps(header | {"chunks": [0]}))
    # Newer ones of Zarr take them for chunks that have some, which the file has not.
    message = "cannot open this as Zarr|a chunk cannot be decoded"
    with pytest.raises((UserError, OSError), match=message):
        open_source(str(tmp_path / "x.zarr")).array.compute(scheduler="synchronous")

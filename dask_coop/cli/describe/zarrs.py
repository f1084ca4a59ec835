"""Open Zarr arrays of folders and URLs without trusting their content.

The JSON files of an array or a group are checked before Zarr sees them: codecs that make Python
objects are refused by name, because "pickle" can run code. Groups are also walked here, because a
link may lead back to a folder above it. Any failure in a chunk becomes one message.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_coop.cli.describe.members import Members
from dask_coop.errors import UserError

#: Codecs of either format that make Python objects; arrays with one of them are refused.
OF_OBJECTS = (
    *("pickle", "json", "json2", "msgpack", "msgpack2", "categorize"),
    *("vlen-array", "vlen-bytes", "vlen-utf8"),
)

#: Most bytes of a JSON file; consolidated ones have megabytes.
_MOST_BYTES = 1 << 26

#: Most arrays and groups to visit.
_MOST_NODES = 10_000

#: The file that marks a folder as an array or a group, and its format.
_FORMATS = {"zarr.json": 3, ".zarray": 2, ".zgroup": 2}

#: The JSON files of a folder by their names.
Node = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ZarrArray:
    """A Zarr array that raises OSError for every fault of a chunk."""

    array: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]

    def __getitem__(self, index: Any) -> Any:
        """Return the elements at an index.

        Raises
        ------
        OSError
            If it cannot be read or decoded.
        """
        # Here, because a worker's process must import it, too.
        import dask_coop.cli.describe.blosc  # noqa: F401

        try:
            return self.array[index]
        # Each codec has its own exceptions, none of which is a bug of ours.
        except Exception as error:
            message = f"{type(error).__name__}: {error}".rstrip(": ")
            raise OSError(f"a chunk cannot be decoded: {message}") from error


def open_zarr(path: Path | str, dataset: str | None) -> Members:
    """Return the arrays of a group, each a `ZarrArray`, or one array, of the name "".

    Parameters
    ----------
    path : pathlib.Path or str
        A folder, or a URL.
    dataset : str, optional
        The name of an array in a group; then other arrays are looked for only if it is absent.

    Raises
    ------
    UserError
        If it cannot be opened; when an array is opened, also if its codecs make Python objects.
    """
    folder = _Folder(path)
    node = folder.node("")
    if not node:
        raise folder.refused("it has no zarr.json, .zarray or .zgroup")
    if not _is_array(node):
        names, along = folder.arrays(node, dataset)
        return Members(names, along, partial(_open_array, folder))
    if dataset is not None:
        raise UserError(f"{path}: --dataset {dataset} does not apply; this is one Zarr array")
    return Members([""], (), partial(_open_array, folder))


def _open_array(folder: _Folder, name: str) -> tuple[ZarrArray, dict[str, Any]]:
    # Zarr reads by the array's own metadata, which consolidated ones may contradict.
    path, node = folder.path, folder.node(name)
    if not _is_array(node):
        raise folder.refused(f"its metadata names the array {name}, which does not exist")
    for document in node.values():
        codecs = {key: document[key] for key in document.keys() - {"attributes"}}
        _require_numbers(path, name, codecs)
    try:
        opened = _open(f"{path}/{name}".rstrip("/"), node)
    # Damaged metadata and remote file systems may raise any exception.
    except Exception as error:
        raise folder.refused(f"{type(error).__name__}: {error}") from error
    array = opened[0]
    if any(n and not size for n, size in zip(array.shape, array.chunks, strict=True)):
        raise folder.refused(f"chunks of {array.chunks} have no elements of shape {array.shape}")
    return opened


def _open(path: str, node: Node) -> tuple[ZarrArray, dict[str, Any]]:
    import zarr

    import dask_coop.cli.describe.blosc  # noqa: F401

    version = next(_FORMATS[name] for name in node if name in _FORMATS)
    array = zarr.open_array(path, mode="r", zarr_format=version)
    attributes, dtype = dict(array.attrs), np.dtype(array.dtype)
    # As in xarray: in format 2, Zarr's fill value of an array with dimensions is netCDF's.
    if version == 2 and "_ARRAY_DIMENSIONS" in attributes:
        attributes["_FillValue"] = array.fill_value
    if version == 2 and hasattr(array.metadata.compressor, "most"):
        array.metadata.compressor.most = math.prod(array.chunks) * dtype.itemsize
    return ZarrArray(array, array.shape, dtype, array.chunks), attributes


def _is_array(node: Node) -> bool:
    return ".zarray" in node or node.get("zarr.json", {}).get("node_type") == "array"


def _require_numbers(path: Path | str, name: str, document: Any) -> None:
    """Refuse the codecs of Python objects, anywhere in an array's metadata."""
    if isinstance(document, dict):
        for key in ("id", "name"):
            # Their names may begin with numcodecs, or be URLs.
            codec = str(document.get(key)).rpartition("/")[2].rpartition(".")[2].lower()
            if codec.replace("_", "-") in OF_OBJECTS:
                raise UserError(
                    f"{path}: the chunks of {name or 'this array'} are Python objects, made by the "
                    f"codec {document[key]!r}, which can run code; nothing is read. If you trust "
                    "it, convert it to numbers"
                )
    if isinstance(document, dict | list):
        inner = document.values() if isinstance(document, dict) else document
        for value in inner:
            _require_numbers(path, name, value)


def _dimensions(document: dict[str, Any], attributes: Any) -> list[Any]:
    """Return the names of an array's dimensions if xarray or a similar library wrote them."""
    attributes = attributes if isinstance(attributes, dict) else {}
    names = document.get("dimension_names") or attributes.get("_ARRAY_DIMENSIONS")
    return names if isinstance(names, list) else []


class _Folder:
    """The folder of an array or a group, local or remote."""

    def __init__(self, path: Path | str) -> None:
        self.path, self.is_local, self._seen = path, isinstance(path, Path), 0
        # If it is missing, the command reports that.
        import zarr  # noqa: F401

        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem

            if isinstance(path, Path):
                self.files, self.root = LocalFileSystem(), os.path.abspath(path)
            else:
                self.files, self.root = url_to_fs(path)
        except (ImportError, ValueError) as error:
            raise self.refused(error) from error

    def refused(self, reason: object) -> UserError:
        """Return the error for a folder that cannot be opened."""
        return UserError(f"{self.path}: cannot open this as Zarr: {reason}")

    def node(self, name: str) -> Node:
        """Return the JSON files of a folder in it; an empty dict if it is no array or group."""
        documents = ((file, self._read(f"{name}/{file}".lstrip("/"))) for file in _FORMATS)
        return {file: document for file, document in documents if document is not None}

    def arrays(self, node: Node, dataset: str | None) -> tuple[list[str], set[str]]:
        """Return the names of the group's arrays, or only `dataset`, and of the coordinates."""
        if dataset is not None and ".." not in dataset.split("/"):
            name = dataset.strip("/")
            if name and _is_array(self.node(name)):
                return [name], set()
        arrays = dict(self._consolidated(node) or self._walk("", ()))
        along = {name for name, names in arrays.items() if names == [name.rpartition("/")[2]]}
        return [*arrays], along

    def _read(self, name: str) -> dict[str, Any] | None:
        path = f"{self.root}/{name}"
        # Reading a named pipe would never end.
        if self.is_local and not os.path.isfile(path):
            return None
        # A local read allocates all the bytes requested; a server may not tell the size.
        most = min(os.path.getsize(path), _MOST_BYTES) if self.is_local else _MOST_BYTES
        try:
            data = self.files.cat_file(path, 0, most + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        # Each file system has its own exceptions.
        except Exception as error:
            raise self.refused(f"{name}: {error}") from error
        if len(data) > _MOST_BYTES:
            raise self.refused(f"{name} has more than {_MOST_BYTES:,} bytes")
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self.refused(f"{name} is damaged: {error}") from error
        if not isinstance(document, dict):
            raise self.refused(f"{name} is damaged: it is no JSON object")
        return document

    def _consolidated(self, node: Node) -> Iterator[tuple[str, list[Any]]] | None:
        """Return the arrays that a group's own metadata lists, with their dimensions."""
        if "zarr.json" in node:
            inner = node["zarr.json"].get("consolidated_metadata")
            listed = inner.get("metadata") if isinstance(inner, dict) else None
            if not isinstance(listed, dict):
                return None
            nodes = {
                name: (document, document.get("attributes"))
                for name, document in listed.items()
                if isinstance(document, dict) and document.get("node_type") == "array"
            }
        else:
            listed = (self._read(".zmetadata") or {}).get("metadata")
            if not isinstance(listed, dict):
                return None
            nodes = {
                name.removesuffix("/.zarray"): (document, listed.get(f"{name[:-7]}.zattrs"))
                for name, document in listed.items()
                if name.endswith("/.zarray") and isinstance(document, dict)
            }
        # No name may lead out of the folder.
        good = {name for name in nodes if ".." not in name.split("/") and name.strip("/") == name}
        return ((name, _dimensions(*nodes[name])) for name in nodes if name in good)

    def _walk(self, name: str, above: tuple[str, ...]) -> Iterator[tuple[str, list[Any]]]:
        """Yield the arrays below a group, with their dimensions."""
        path = f"{self.root}/{name}".rstrip("/")
        if self.is_local:
            real = os.path.realpath(path)
            if real in above:
                raise self.refused(
                    f"{name} is a link that leads back to a folder above it; remove it, or give "
                    "--dataset NAME"
                )
            above = (*above, real)
        try:
            below = sorted(self.files.ls(path, detail=False))
        except Exception as error:
            raise self.refused(f"{name or 'it'} cannot be listed: {error}") from error
        for child in below:
            inner = f"{name}/{child.rstrip('/').rpartition('/')[2]}".lstrip("/")
            if self.is_local and not os.path.isdir(f"{self.root}/{inner}"):
                continue
            node = self.node(inner)
            self._seen += 1
            if self._seen > _MOST_NODES:
                raise self.refused(f"it has more than {_MOST_NODES:,} folders; give --dataset NAME")
            if _is_array(node):
                document = node.get("zarr.json") or node[".zarray"]
                more = document.get("attributes") or self._read(f"{inner}/.zattrs")
                yield inner, _dimensions(document, more)
            elif node:
                yield from self._walk(inner, above)

"""What the sources that were typed stand for: files, or what has to be looked for or fetched.

======================  ====================================================================
``DIR``                 the pictures in a folder
``'DIR/*.npy'``         the files that a pattern fits, where the shell has left it as it is
``NAME.npz``            each array, or one by --dataset
``NAME.csv``            each column of numbers, dates or bool, or one by --dataset
``-``                   a .npy that comes in on stdin, which is held in memory
``s3://BUCKET/X.npy``   a file that fsspec fetches; Zarr is read where it is
======================  ====================================================================

Single files are opened by readers.py.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from glob import glob, has_magic
from importlib.metadata import metadata
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import dask.array as da
import numpy as np
from dask import delayed
from dask.array.core import concatenate, from_delayed

from dask_coop.api.call.planning import call_with_graphs
from dask_coop.cli.describe.members import choose
from dask_coop.cli.describe.npz import open_npz
from dask_coop.cli.describe.pictures import PICTURES
from dask_coop.cli.describe.readers import (
    Chunks,
    Source,
    is_zarr,
    make_source,
    open_source,
    require_known,
)
from dask_coop.errors import UserError

#: The longest axis whose indices are described one by one, with a picture each.
MOST_PARTS = 100


def open_sources(
    texts: Sequence[str], dataset: str | None, chunks: Chunks, scratch: str
) -> list[Source]:
    """Open all that some sources stand for, without reading more than it must.

    Parameters
    ----------
    texts : sequence of str
        As they were typed.
    dataset : str, optional
        Which array of each source.
    chunks : "auto", int or tuple of int
        The chunks' shape.
    scratch : str
        A folder for what is fetched.

    Returns
    -------
    list of Source

    Raises
    ------
    UserError
        If there is no such source, or nothing in it that can be described.
    """
    return [
        source
        for text in texts
        for one in _expand(text)
        for source in _open(one, dataset, chunks, scratch)
    ]


def join(sources: list[Source]) -> Source:
    """Return several sources as one array, one behind the other along the first axis.

    Raises
    ------
    UserError
        If they differ in dtype, or in the length of another axis.
    """
    first, *others = sources
    for source in others:
        one, other = first.array, source.array
        pair = f"--join: {source.text} cannot follow {first.text}"
        if one.ndim == 0 or one.ndim != other.ndim or one.shape[1:] != other.shape[1:]:
            raise UserError(
                f"{pair}: their shapes are {other.shape} and {one.shape}, and only the first of "
                "their axes may differ; leave out --join"
            )
        if one.dtype != other.dtype:
            raise UserError(
                f"{pair}: their dtypes are {other.dtype} and {one.dtype}; leave out --join"
            )
    if not others:
        return first
    more = f"and {len(others)} more"
    return replace(
        first,
        text=f"{first.text} {more}",
        name=f"{first.name} {more}",
        stem=f"{first.stem} {more}",
        array=call_with_graphs(concatenate, [source.array for source in sources]),
        notes=tuple(dict.fromkeys(note for source in sources for note in source.notes)),
    )


def split(source: Source, axis: int) -> list[Source]:
    """Return each index along an axis of a source as a source of its own.

    Raises
    ------
    UserError
        If there is no such axis, or one longer than `MOST_PARTS`.
    """
    x, text = source.array, source.text
    if not -x.ndim <= axis < x.ndim:
        raise UserError(
            f"{text}: there is no axis {axis} for --each, as the shape is {x.shape}; give one from "
            f"{-x.ndim} to {x.ndim - 1}"
            if x.ndim
            else f"{text}: there is no axis for --each, as it is one value; leave out --each"
        )
    length, before = x.shape[axis], axis % x.ndim
    if length > MOST_PARTS:
        raise UserError(
            f"{text}: axis {axis} for --each is {length} long; give one of at most {MOST_PARTS}"
        )
    parts = []
    for number in range(length):
        shown = [":"] * x.ndim
        shown[before] = str(number)
        index = f"[{', '.join(shown)}]"
        parts.append(
            replace(
                source,
                text=text + index,
                name=source.name + index,
                stem=f"{source.stem}-{number}",
                array=x[(slice(None),) * before + (number,)],
            )
        )
    return parts


def _expand(text: str) -> list[str]:
    """Return the files that a folder or a pattern stands for; anything else as it is."""
    path = Path(text)
    if text == "-" or "://" in text or text.startswith("skimage:"):
        return [text]
    if path.is_dir() and not is_zarr(path):
        found = sorted(str(one) for one in path.iterdir() if one.suffix.lower() in PICTURES)
        if not found:
            raise UserError(
                f"{text}: there is no picture in this folder ({', '.join(PICTURES)}); name its "
                f"files, as in '{path / '*.npy'}'"
            )
        return found
    if has_magic(text) and not path.exists():
        found = sorted(glob(text, recursive=True))
        if not found:
            raise UserError(f"{text}: no file fits this pattern; check the path")
        return found
    return [text]


def _open(text: str, dataset: str | None, chunks: Chunks, scratch: str) -> list[Source]:
    if text == "-":
        if dataset is not None:
            raise UserError(f"-: --dataset {dataset} does not apply; what comes in is one array")
        return [make_source(text, Path("standard input"), "", _read_stdin(), chunks)]
    path = Path(urlsplit(text).path if "://" in text else text)
    if "://" in text:
        require_known(text, path)
        files, inside = _file_system(text)
        if path.suffix.lower() != ".zarr":
            path = _fetch(text, files, inside, scratch)
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".csv"):
        return [open_source(text, dataset, chunks, path)]
    if not path.exists():
        raise UserError(f"{text}: no such file; check the path")
    notes: tuple[str, ...] = ()
    if suffix == ".npz":
        arrays: dict[str, Any] = open_npz(text, path, dataset)
        names = [*arrays]
    else:
        arrays, notes = _open_csv(text, path)
        names = [*arrays] if dataset is None else [choose(path, [*arrays], dataset)]
    return [make_source(text, path, name, arrays[name], chunks, notes=notes) for name in names]


def _read_stdin() -> np.ndarray[Any, Any]:
    if sys.stdin.isatty():
        raise UserError("-: nothing comes in; pipe a .npy into it, or name a file")
    # A file, as which NumPy would take stdin itself, could tell where it is.
    stream: Any = SimpleNamespace(read=sys.stdin.buffer.read)
    try:
        return np.asarray(np.lib.format.read_array(stream))
    # A header that is damaged fails anywhere in the parser.
    except Exception as error:
        raise UserError(f"-: what comes in cannot be read as .npy: {error}") from error


def _open_csv(text: str, path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the columns that can be described, and which were left out."""
    try:
        import dask.dataframe as dd
    except ImportError as error:
        raise UserError(
            f"{text}: tables are read by dask.dataframe, which cannot be imported ({error}); run "
            "`pip install dask[dataframe]`"
        ) from error
    notes = []
    try:
        try:
            frame, lengths = _read_csv(dd, path)
        except ValueError as error:
            if "Mismatched dtypes" not in str(error):
                raise
            # Where numbers are missing, too, behind the lines that dtypes are found by.
            frame, lengths = _read_csv(dd, path, assume_missing=True)
            notes.append("whole numbers are read as float64, for dtypes change within the file")
    # What pandas and its parsers raise is of many kinds.
    except Exception as error:
        # Behind that word Dask says what to write in Python.
        said = str(error).partition("Usually")[0]
        raise UserError(f"{text}: cannot read this as a table: {said}") from error
    left = {name: dtype for name, dtype in frame.dtypes.items() if not _is_plain(dtype)}
    columns = {
        str(name): _column(frame[name], lengths) for name in frame.columns if name not in left
    }
    names = ", ".join(f"{name} ({dtype})" for name, dtype in left.items())
    if not columns:
        raise UserError(f"{text}: none of its columns holds numbers: {names}")
    if left:
        notes.append(f"columns left out: {names}")
    return columns, tuple(notes)


def _read_csv(dd: Any, path: Path, **options: Any) -> Any:
    """Return a data frame, and the lengths of its parts."""
    import pandas as pd  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        # Else the first fields of rows that are longer than the header would be an index.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = dd.read_csv(str(path), index_col=False, **options)
        except pd.errors.ParserWarning as error:
            raise ValueError(
                "its rows have more fields than its header; fields are separated by ',', and "
                "decimals by '.'"
            ) from error
    return frame, frame.map_partitions(len).compute()


def _column(series: Any, lengths: Any) -> da.Array:
    # Where Dask plans queries its own conversion makes no array.
    parts = [delayed(np.asarray)(part) for part in series.to_delayed()]
    return concatenate(
        [
            from_delayed(part, (length,), dtype=series.dtype)
            for part, length in zip(parts, map(int, lengths), strict=True)
        ]
    )


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "biufmM"


def _file_system(url: str) -> tuple[Any, str]:
    """Return where a URL points, and the path there."""
    from fsspec.core import url_to_fs

    try:
        files, inside = url_to_fs(url)
    except ImportError as error:
        protocol = url.partition("://")[0]
        protocol = "http" if protocol == "https" else protocol
        extras = metadata("fsspec").get_all("Provides-Extra") or []
        run = f"; run `pip install fsspec[{protocol}]`" if protocol in extras else ""
        raise UserError(f"{url}: {error}{run}") from error
    except ValueError as error:
        raise UserError(f"{url}: {error}; check the address") from error
    return files, inside


def _fetch(url: str, files: Any, inside: str, scratch: str) -> Path:
    """Copy a file here, and return its path."""
    path = Path(mkdtemp(dir=scratch), Path(urlsplit(url).path).name)
    try:
        files.get_file(inside, str(path))
    # Each file system has exceptions of its own, and none of them is our bug.
    except Exception as error:
        said = str(error) or type(error).__name__
        raise UserError(f"{url}: cannot fetch this: {said}; check the address") from error
    return path

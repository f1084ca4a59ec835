"""Open the sources that the user typed: find or fetch their files.

======================  ====================================================================
``DIR``                 the files in a folder
``'DIR/*.npy'``         the files that fit a pattern, if the shell has not expanded it
``NAME.npz``            each array, or one by --dataset
``NAME.csv``            each column of numbers, dates or bool, or one by --dataset
``-``                   a .npy on stdin, which is held in memory
``s3://BUCKET/X.npy``   a file that fsspec fetches; Zarr is read where it is
======================  ====================================================================

readers.py opens single files.
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
from dask.tokenize import tokenize

from dask_coop.api.call.planning import call_with_graphs
from dask_coop.cli.describe.codes import Codes
from dask_coop.cli.describe.members import choose
from dask_coop.cli.describe.npz import open_npz
from dask_coop.cli.describe.pictures import OWN, is_own_figure
from dask_coop.cli.describe.readers import (
    SUFFIXES,
    Chunks,
    Source,
    is_zarr,
    listed,
    make_source,
    open_file,
    reason,
    require_known,
)
from dask_coop.errors import UserError

#: The longest axis for --each: each index gets a picture.
MOST_INDICES = 100

#: The most names of skipped files to print for each reason.
MOST_NAMES = 5


def open_sources(
    texts: Sequence[str], dataset: str | None, chunks: Chunks, scratch: str
) -> list[Source]:
    """Open all files and arrays of the sources, and read no more than necessary.

    Parameters
    ----------
    texts : sequence of str
        The sources as the user typed them.
    dataset : str, optional
        The name of the array of each source.
    chunks : "auto", int or tuple of int
        The chunks' shape.
    scratch : str
        A folder for fetched files.

    Returns
    -------
    list of Source

    Raises
    ------
    UserError
        If there is no such source, or its data cannot be described.
    """
    sources = []
    for text in texts:
        path = Path(text)
        if text == "-" or "://" in text or text.startswith("skimage:"):
            sources += _open(text, dataset, chunks, scratch)
        elif path.is_dir() and not is_zarr(path):
            sources += _open_folder(text, dataset, chunks, scratch)
        elif has_magic(text) and not path.exists():
            for file in _fitting(text):
                sources += _open(file, dataset, chunks, scratch)
        else:
            sources += _open(text, dataset, chunks, scratch)
    return sources


def join(sources: list[Source]) -> Source:
    """Return several sources as one array, joined along the first axis.

    Raises
    ------
    UserError
        If they differ in dtype, or in the length of another axis.
    """
    first, *others = sources
    for source in others:
        x, y = first.array, source.array
        pair = f"--join: {source.text} cannot follow {first.text}"
        if x.ndim == 0 or x.ndim != y.ndim or x.shape[1:] != y.shape[1:]:
            raise UserError(
                f"{pair}: their shapes are {y.shape} and {x.shape}, and only the first of "
                "their axes may differ; leave out --join"
            )
        if x.dtype != y.dtype:
            raise UserError(f"{pair}: their dtypes are {y.dtype} and {x.dtype}; leave out --join")
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
        codes=_join_codes([source.codes for source in sources]),
    )


def _join_codes(codes: list[Codes | None]) -> Codes | None:
    """Return the codes of joined sources; None unless each code stands for one value in all."""
    known = [each for each in codes if each is not None]
    if len({tokenize(each.stored, each.attributes) for each in known}) != 1 or None in codes:
        return None
    return known[0].like(call_with_graphs(concatenate, [each.array for each in known]))


def split(source: Source, axis: int) -> list[Source]:
    """Return each index along an axis of a source as a source of its own.

    Raises
    ------
    UserError
        If there is no such axis, or it is longer than `MOST_INDICES`.
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
    if length > MOST_INDICES:
        raise UserError(
            f"{text}: axis {axis} for --each is {length} long; give one of at most {MOST_INDICES}"
        )
    sources = []
    for number in range(length):
        shown = [":"] * x.ndim
        shown[before] = str(number)
        index = f"[{', '.join(shown)}]"
        at, codes = (slice(None),) * before + (number,), source.codes
        sources.append(
            replace(
                source,
                text=text + index,
                name=source.name + index,
                stem=f"{source.stem}-{number}",
                array=x[at],
                codes=None if codes is None else codes.like(codes.array[at]),
            )
        )
    return sources


def _open_folder(text: str, dataset: str | None, chunks: Chunks, scratch: str) -> list[Source]:
    """Open the files of a folder; the notes of the first source name the skipped ones."""
    sources, skipped = list[Source](), {}
    for path in sorted(Path(text).iterdir()):
        file = str(path)
        if path.suffix.lower() not in SUFFIXES and not is_zarr(path):
            skipped[path.name] = "a folder" if path.is_dir() else "unknown extension"
        elif is_own_figure(path):
            skipped[path.name] = OWN
        else:
            try:
                sources += _open(file, dataset, chunks, scratch)
            except UserError as error:
                skipped[path.name] = reason(error, file)
    said = listed(skipped, MOST_NAMES)
    if not sources:
        raise UserError(
            f"{text}: there is nothing to describe in this folder: {said or 'it is empty'}"
        )
    if skipped:
        note = f"skipped in {text}: {said}"
        sources[0] = replace(sources[0], notes=(*sources[0].notes, note))
    return sources


def _fitting(text: str) -> list[str]:
    """Return the files that fit a pattern, without figures of this command."""
    files = sorted(glob(text, recursive=True))
    if not files:
        raise UserError(f"{text}: no file fits this pattern; check the path")
    others = [file for file in files if not is_own_figure(Path(file))]
    if not others:
        raise UserError(f"{text}: all files are {OWN}; to describe one, name it")
    return others


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
        return open_file(text, dataset, chunks, path)
    if not path.exists():
        raise UserError(f"{text}: no such file; check the path")
    notes: tuple[str, ...] = ()
    if suffix == ".npz":
        arrays: dict[str, Any] = open_npz(text, path, dataset)
    else:
        arrays, notes = _open_csv(text, path)
        arrays = {name: arrays[name] for name in choose(path, [*arrays], dataset)}
    sources = [make_source(text, path, name, array, chunks) for name, array in arrays.items()]
    sources[0] = replace(sources[0], notes=(*notes, *sources[0].notes))
    return sources


def _read_stdin() -> np.ndarray[Any, Any]:
    if sys.stdin.isatty():
        raise UserError("-: nothing comes in; pipe a .npy into it, or name a file")
    # Only `read`: NumPy would take stdin for a file and ask for its position.
    stream: Any = SimpleNamespace(read=sys.stdin.buffer.read)
    try:
        return np.asarray(np.lib.format.read_array(stream))
    # A damaged header may fail anywhere in the parser.
    except Exception as error:
        raise UserError(f"-: what comes in cannot be read as .npy: {error}") from error


def _open_csv(text: str, path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the columns that can be described, and notes on the others."""
    try:
        import dask.dataframe as dd
    except ImportError as error:
        raise UserError(
            f"{text}: tables are read by dask.dataframe, which cannot be imported ({error}); run "
            '`pip install "dask[dataframe]"`'
        ) from error
    notes = []
    try:
        try:
            frame, lengths = _read_csv(dd, path)
        except ValueError as error:
            if "Mismatched dtypes" not in str(error):
                raise
            # Numbers are missing behind the lines by which pandas chose the dtypes.
            frame, lengths = _read_csv(dd, path, assume_missing=True)
            notes.append("whole numbers are read as float64, for dtypes change within the file")
    # pandas and its parsers raise exceptions of many kinds.
    except Exception as error:
        # From "Usually" on, Dask's message advises on Python code.
        message = str(error).partition("Usually")[0]
        raise UserError(f"{text}: cannot read this as a table: {message}") from error
    left_out = {name: dtype for name, dtype in frame.dtypes.items() if not _is_plain(dtype)}
    columns = {
        str(name): _column(frame[name], lengths) for name in frame.columns if name not in left_out
    }
    names = ", ".join(f"{name} ({dtype})" for name, dtype in left_out.items())
    if not columns:
        raise UserError(f"{text}: none of its columns holds numbers: {names}")
    if left_out:
        notes.append(f"columns left out: {names}")
    return columns, tuple(notes)


def _read_csv(dd: Any, path: Path, **options: Any) -> Any:
    """Return a data frame, and the lengths of its partitions."""
    import pandas as pd  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        # As an error: pandas would make an index of the surplus fields of long rows.
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
    # By delayed, because with query planning Dask's own conversion makes no array.
    arrays = [delayed(np.asarray)(partition) for partition in series.to_delayed()]
    return concatenate(
        [
            from_delayed(array, (length,), dtype=series.dtype)
            for array, length in zip(arrays, map(int, lengths), strict=True)
        ]
    )


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "biufmM"


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    try:
        files, inside = url_to_fs(url)
    except ImportError as error:
        protocol = url.partition("://")[0]
        protocol = "http" if protocol == "https" else protocol
        extras = metadata("fsspec").get_all("Provides-Extra") or []
        remedy = f'; run `pip install "fsspec[{protocol}]"`' if protocol in extras else ""
        raise UserError(f"{url}: {error}{remedy}") from error
    except ValueError as error:
        raise UserError(f"{url}: {error}; check the address") from error
    return files, inside


def _fetch(url: str, files: Any, inside: str, scratch: str) -> Path:
    """Copy a file to the scratch folder, and return its path."""
    path = Path(mkdtemp(dir=scratch), Path(urlsplit(url).path).name)
    try:
        files.get_file(inside, str(path))
    # Each file system has its own exceptions, none of which is a bug of ours.
    except Exception as error:
        message = str(error) or type(error).__name__
        raise UserError(f"{url}: cannot fetch this: {message}; check the address") from error
    return path

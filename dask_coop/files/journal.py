"""Remember which blocks of an array are written, so that an interrupted writing can go on.

    folder of the array -+- zarr.json
                         +- .to_zarr.json            whose blocks they are, a token
                         +- .to_zarr.host-12.done    what a process has written, a line a block
                         +- c/0, c/1, ...

A line is written once the files of its block have their names. Once all blocks are written, the
files of the journal are removed, the one with the token first: without it, lines say nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from dask_coop.files.stores import LocalFiles, process

#: A block's line; one that was cut when its process was killed does not end so.
_LINE = re.compile(r"^([\d,]*);$", re.MULTILINE)
_DONE = ".done"

#: Where a block begins in the array.
Start = tuple[int, ...]


@dataclass(frozen=True)
class Journal:
    """The journal of the writing of an array, or of a region.

    Attributes
    ----------
    folder : str
        The array's.
    region : str
        Distinguishes the journals of regions; empty for whole arrays.
    token : str
        Whose blocks they are: of which array, in which chunks, with which metadata.
    """

    folder: str
    region: str
    token: str

    @property
    def marker(self) -> str:
        """The path of the file with the token."""
        return os.path.join(self.folder, f"{self._prefix}.json")

    @property
    def _prefix(self) -> str:
        return ".to_zarr" + f"-{self.region}" * bool(self.region)

    def owner(self) -> str | None:
        """Return the token of the unfinished writing, or None."""
        try:
            with open(self.marker, encoding="utf-8") as file:
                return str(json.load(file)["token"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError):
            return ""

    def begin(self) -> None:
        """Start anew, with no block written."""
        self._remove_lines()
        text = json.dumps({"token": self.token, "written_by": "dask_coop.to_zarr"}, indent=2)
        LocalFiles(self.folder).write(os.path.basename(self.marker), [text.encode()], sync=False)

    def go_on(self) -> set[Start]:
        """Return where written blocks begin, and remove files that will never be whole."""
        LocalFiles(self.folder).delete_partial()
        starts: set[Start] = set()
        for path in self._lines():
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = _LINE.findall(file.read())
            starts |= {tuple(int(n) for n in line.split(",") if n) for line in lines}
        return starts

    def add(self, start: Start) -> None:
        """Note that a block is written."""
        path = os.path.join(self.folder, f"{self._prefix}.{process()}{_DONE}")
        # One call appends it whole, also if other threads do the same.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, f"\n{','.join(map(str, start))};\n".encode())
        finally:
            os.close(descriptor)

    def end(self) -> None:
        """Remove the journal."""
        with suppress(FileNotFoundError):
            os.unlink(self.marker)
        self._remove_lines()

    def _lines(self) -> Iterator[str]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.folder) as entries:
            names = [entry.name for entry in entries]
            for name in names:
                if name.startswith(f"{self._prefix}.") and name.endswith(_DONE):
                    yield os.path.join(self.folder, name)

    def _remove_lines(self) -> None:
        for path in [*self._lines()]:
            with suppress(FileNotFoundError):
                os.unlink(path)

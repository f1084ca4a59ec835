"""Print, also to a pipe whose reader leaves before the end, as ``head`` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TextIO


class Pipe:
    """A stream that drops further text after its reader has left.

    Parameters
    ----------
    stream : file
        stdout or stderr.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write text, or nothing if the reader has left."""
        self._unless_left(self._stream.write, text)

    def flush(self) -> None:
        """Flush the stream."""
        self._unless_left(self._stream.flush)

    def _unless_left(self, do: Callable[..., Any], *arguments: str) -> None:
        try:
            do(*arguments)
        except BrokenPipeError:
            # Or flushing its buffer would fail again when Python ends.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def say(text: str) -> None:
    """Print text to stdout at once."""
    print(text, file=Pipe(sys.stdout), flush=True)


def finish() -> None:
    """Flush stdout."""
    Pipe(sys.stdout).flush()

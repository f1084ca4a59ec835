"""What all suites hold calls to: building computes nothing, and errors say what was wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refuse(*args: Any, **kwargs: Any) -> Any:
    """Fail, in the place of a scheduler or of a task."""
    raise AssertionError("computed while building")


def refused(*rows: tuple[Callable[[], Any], type[Exception], str]) -> None:
    """Hold each call to the error that it raises, and to the words of that."""
    for call, error, words in rows:
        with pytest.raises(error, match=words):
            call()

"""What other libraries' functions are here: the lists are the package's, and names are there."""

from __future__ import annotations

import re

import coming
import dask.array as da
import pytest

TEXT = coming.PAGE.read_text()


def test_the_lists_are_those_of_the_package() -> None:
    pytest.importorskip("xarray")
    assert coming.page() == TEXT, "python tools/coming.py --write"


def test_functions_of_dask_are_there() -> None:
    for name in re.findall(r"\bda\.([a-z_]\w*)", TEXT):
        assert hasattr(da, name), name


def test_what_is_said_of_functions_is_said_of_some_that_are_there() -> None:
    told = f"{coming.NOT_IN_CUPY} {coming.ONLY_IN_CUPY} {coming.ONLY_IN_CUPYNUMERIC}"
    assert {*told.split()} <= {*coming.functions()}
    rows = {row.name for row in coming.installed_dask.rows()}
    assert {*coming.DIFFERENCES} <= rows | {*coming.NOT_INSTALLED}


def test_cupy_has_what_is_said_to_be_in_it() -> None:
    cupy = pytest.importorskip("cupy")
    assert not [name for name in coming.in_cupy() if not hasattr(cupy, name)]
    assert not [name for name in coming.NOT_IN_CUPY.split() if hasattr(cupy, name)]

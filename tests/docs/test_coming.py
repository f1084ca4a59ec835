"""What other libraries' functions are here: the lists are the package's, and names are there."""

from __future__ import annotations

import re

import coming
import dask.array as da
import pytest

import dask_coop

TEXT = coming.PAGE.read_text()


def test_the_lists_are_those_of_the_package() -> None:
    pytest.importorskip("xarray")
    assert coming.page() == TEXT, "python tools/coming.py --write"


def test_what_is_named_is_there() -> None:
    accessors = pytest.importorskip("dask_coop.xarray")
    for name in re.findall(r"\bdc\.(\w+)", TEXT):
        assert hasattr(dask_coop, name), name
    for name in re.findall(r"\bda\.([a-z_]\w*)", TEXT):
        assert hasattr(da, name), name
    for name in re.findall(r"\.coop\.(\w+)", TEXT):
        assert hasattr(accessors.CoopDataArray, name), name


def test_what_is_said_to_be_missing_elsewhere_is_public_here() -> None:
    assert coming.NOT_IN_CUPY <= {*coming.functions()}
    assert coming.NOT_IN_CUPYNUMERIC <= {*coming.functions()}
    assert set(coming.DIFFERENCES) <= {row.name for row in coming.installed_dask.rows()} | {
        *coming.NOT_INSTALLED
    }


def test_cupy_has_what_is_said_to_be_in_it() -> None:
    cupy = pytest.importorskip("cupy")
    there = {*coming.functions()} - coming.NOT_IN_CUPY
    assert not [name for name in there if not hasattr(cupy, name)]
    assert not [name for name in coming.NOT_IN_CUPY - {"select"} if hasattr(cupy, name)]

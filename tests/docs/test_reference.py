"""The page of all public names, which tells when one of them or a signature changes."""

from __future__ import annotations

import re

import pytest
import reference

import dask_coop


def test_the_page_is_that_of_the_package() -> None:
    assert reference.PAGE.read_text() == reference.page(), "python tools/reference.py --write"


def test_every_public_name_is_there_once_with_what_it_does() -> None:
    lines = reference.page().splitlines()
    names = [line.split("`")[1].partition("(")[0] for line in lines if line.startswith("- `")]
    assert sorted(names) == sorted(dask_coop.__all__)
    assert "- `median(a, axis=None, keepdims=False, out=None, *" in reference.page()


def test_methods_of_public_classes_are_there_too() -> None:
    page = reference.page()
    assert "\n  - `close()`  \n    End the threads" in page
    assert "\n  - `get(dsk, keys, " in page
    assert "\n  - `result`  \n" in page


def test_help_opens_with_every_public_name_once() -> None:
    text = str(dask_coop.__doc__)
    assert text.startswith("Statistics")
    families = text.partition("\nReductions\n")[2].partition("\n\n")[0]
    found = re.findall(r"\w+", " ".join(re.findall(r"^    (.*)$", families, re.MULTILINE)))
    for name in dask_coop.__all__:
        assert found.count(name) == 1, name


def test_a_name_without_a_section_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference.SECTIONS, "Scans", "")
    with pytest.raises(LookupError, match=r"cummax of the module dask_coop\.api\.cumulative"):
        reference.page()

"""Every block of Python on a page runs, or says beside it why it can't here."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
import yaml
from support.clusters import cluster
from test_readme import REPOSITORY

import dask_coop as dc

#: Pages whose blocks other tests run, and hold to what they promise.
ELSEWHERE = {"README.md": "test_readme.py", "xarray.md": "test_xarray_page.py"}
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]

BLOCK = re.compile(r"(?:^<!-- not run: (.*?) -->\n)?^```python\n(.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """A block, and why it is not run, if so."""

    why_not: str
    code: str


def blocks(page: Path) -> list[Block]:
    return [Block(why, code) for why, code in BLOCK.findall(page.read_text())]


RUN = [
    page
    for page in PAGES
    if page.name not in ELSEWHERE and not all(block.why_not for block in blocks(page))
]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_blocks_run_one_after_another(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xarray")
    pytest.importorskip("xhistogram")
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(12.0))
    names: dict[str, Any] = {"__name__": "__main__"}
    with dask.config.set(scheduler="threads"), warnings.catch_warnings():
        # Said by xarray of a function of pandas' that xhistogram uses.
        warnings.filterwarnings("ignore", category=FutureWarning)
        for block in blocks(page):
            if not block.why_not:
                exec(compile(block.code, page.name, "exec"), names)
                check_comments(block.code, names)


#: Expressions, printed or not, with a comment that ends with what they are.
SHOWN = re.compile(r"^(\S.*?)  # (?:.*: )?([-\d.\s\[\]]+|True|False)$", re.M)


def check_comments(code: str, names: dict[str, Any]) -> None:
    """Hold expressions to what the comments behind them say that they are, or begin with."""
    for expression, said in SHOWN.findall(code):
        printed = re.fullmatch(r"print\((.*)\)", expression)
        found, expected = (
            re.findall(r"-?\d+\.?\d*|True|False", str(text))
            for text in (eval(printed[1] if printed else expression, names), said)
        )
        assert found[: len(expected)] == expected, expression


def test_comments_are_held_to_results() -> None:
    check_comments("print(x)  # so: [1 2 ...]\nx[1]  # 2\nx  # what it is", {"x": np.arange(1, 4)})
    with pytest.raises(AssertionError, match=r"x\[0\]"):
        check_comments("x[0]  # 2", {"x": [1]})


def test_numbers_on_pages_are_found() -> None:
    found = {page.name: sum(len(SHOWN.findall(b.code)) for b in blocks(page)) for page in RUN}
    assert found["scans.md"] >= 5
    assert found["how.md"] >= 3


def test_blocks_that_start_a_cluster_run_on_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(page, b.code) for page in PAGES for b in blocks(page) if "cluster" in b.why_not]
    assert {page.name for page, _ in found} == {"collective.md", "quickstart.md"}
    # Dask keeps the class that it finds first, for the life of the process.
    dask.base.get_scheduler(scheduler="threads")
    with cluster(2) as client, client.as_current():
        monkeypatch.setattr(distributed, "Client", lambda: client)
        for page, code in found:
            small = re.sub(r"2\*\*(\d+)", lambda power: str(2 ** (int(power[1]) - 9)), code)
            assert small != code
            exec(compile(small, page.name, "exec"), {"da": da, "dc": dc})


def test_blocks_that_are_not_run_say_why() -> None:
    found = {block.why_not for page in PAGES for block in blocks(page)} - {""}
    known = re.compile(r"(needs (a GPU|Slurm|several hosts)|starts a cluster)( and \w+)?")
    assert found
    assert not [why for why in found if not known.fullmatch(why)]


#: A call of ours within a line of text or a table, such as `dc.to_gpu(x, keep=True)`.
CALL = re.compile(r"\b(?:dc|dask_coop)\.([a-zA-Z]\w*)\(((?:[^()`]|\([^()`]*\))*)\)")
#: Keywords of what `**` takes, or of another library's function of that name.
PASSED_ON = {"to_zarr"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_in_text_and_tables_is_of_functions_and_keywords_that_there_are(page: Path) -> None:
    text = "\n".join(re.findall(r"`[^`\n]+`", BLOCK.sub("", page.read_text())))
    importlib.import_module("dask_coop.ndmeasure")
    importlib.import_module("dask_coop.testing")
    accessor = pytest.importorskip("dask_coop.xarray").CoopDataArray
    for name in re.findall(r"\b(?:dc|dask_coop)\.([a-zA-Z]\w+)", text):
        assert hasattr(dc, name), name
    for name in re.findall(r"\.coop\.(\w+)\(", text):
        assert hasattr(accessor, name), name
    for name, arguments in CALL.findall(text):
        taken = inspect.signature(getattr(dc, name)).parameters
        for keyword in re.findall(r"(?:^|, )(\w+)=", re.sub(r"\([^()]*\)", "", arguments)):
            assert keyword in taken or name in PASSED_ON, f"{name}({keyword}=)"


@pytest.mark.parametrize("language", ["yaml", "bash"])
def test_files_and_scripts_on_pages_have_no_wrong_syntax(language: str) -> None:
    fenced = re.compile(rf"^```{language}\n(.*?)^```$", re.M | re.S)
    found = [block for page in PAGES for block in fenced.findall(page.read_text())]
    assert found
    for block in found:
        if language == "yaml":
            assert yaml.safe_load(block)
        else:
            subprocess.run(["bash", "-n"], input=block, text=True, check=True)


def test_all_blocks_are_looked_at() -> None:
    for page in PAGES:
        assert len(blocks(page)) == page.read_text().count("\n```python"), page
    assert {page.name for page in RUN} >= {"quickstart.md", "how.md", "coming.md", "monoids.md"}
    for name, test in ELSEWHERE.items():
        assert (Path(__file__).parent / test).exists(), name

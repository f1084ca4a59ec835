"""The configuration: its file, the code that reads it and its page are held to one another."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
import yaml
from test_architecture import MODULES, PACKAGE

import _dask_coop_early
import dask_coop as dc
from dask_coop.graph import config

REPOSITORY = PACKAGE.parent
FILE = PACKAGE / "dask_coop.yaml"
PAGE = REPOSITORY / "docs" / "configuration.md"


def flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        found |= flat(f"{key}.", value) if isinstance(value, Mapping) else {key: value}
    return found


DEFAULTS = flat("", yaml.safe_load(FILE.read_text()))


def said() -> list[str]:
    """Return the comments that stand above a value in the file, which are in the order of keys."""
    lines = [line.strip() for line in FILE.read_text().splitlines()]
    return [
        above.removeprefix("# ")
        for above, line in pairwise(lines)
        if above.startswith("#") and re.match(r"[\w-]+: \S", line)
    ]


def literals(path: Path) -> tuple[list[str], list[str]]:
    """Return the keys of ours that a module asks `config.get` for, and all that it holds."""
    tree = ast.parse(path.read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    firsts = [node.args[0] for node in calls if ast.unparse(node.func) == "config.get"]
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    asked, held = (
        [node.value for node in of if re.match(r"coop\.[\w.-]+$", str(node.value))]
        for of in (filter(lambda node: isinstance(node, ast.Constant), firsts), nodes)
    )
    return asked, held


def test_what_the_code_reads_is_in_the_file_and_is_read_by_one_function() -> None:
    read = set()
    for path in MODULES:
        asked, held = literals(path)
        assert sorted(asked) == sorted(held), path
        # There, `config` is this one and not Dask's.
        if asked:
            assert "from dask_coop.graph import config" in path.read_text()
        read |= {*asked}
    assert read == DEFAULTS.keys()
    assert not [path for path in MODULES if re.search(r"get\(\s*.coop\W*[,)]", path.read_text())]


def test_the_page_has_the_lines_of_the_file() -> None:
    assert len(said()) == len(DEFAULTS), "each key needs a line above it"
    rows = [
        f"| `{key}` | `{'DASK_' + key.upper().replace('.', '__').replace('-', '_')}` "
        f"| `{default}` | {words} |"
        for (key, default), words in zip(DEFAULTS.items(), said(), strict=True)
    ]
    assert re.findall(r"^\| `coop.*$", PAGE.read_text(), re.MULTILINE) == rows


def test_other_environment_variables_are_on_the_page_and_in_the_code() -> None:
    sources = "".join(p.read_text() for p in [*MODULES, *REPOSITORY.glob("_dask_coop*.py")])
    assert {*re.findall(r"DASK_COOP_[A-Z]+", sources)} == {*_dask_coop_early.VARIABLES}
    rows = re.findall(r"^\| `(DASK_COOP_[A-Z]+)`", PAGE.read_text(), re.MULTILINE)
    assert rows == [*_dask_coop_early.VARIABLES]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "docs").glob("*.md")), ids=lambda p: p.name)
def test_other_pages_name_keys_that_there_are(path: Path) -> None:
    named = set(re.findall(r"`(coop\.[a-z.-]+)`", path.read_text()))
    assert {name for name in named if not any(key.startswith(name) for key in DEFAULTS)} == set()


def test_defaults_suit() -> None:
    dc.sum(da.ones(3, chunks=1))
    assert config.get("coop.barrier-timeout", config.SPAN) == 30
    assert config.get("coop.transfer.buffers", config.size(1)) == 128 << 20
    # Where a process sets the whole of it, what it leaves out is as it was.
    with dask.config.set(coop={"fallback": "warn"}):
        assert config.get("coop.fallback", "allow", "warn") == "warn"
        assert config.get("coop.engine", "auto") == "auto"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coop.enigne": "auto"}, "has coop.enigne, .* did you mean coop.engine, .*COOP__ENGINE"),
        ({"coop.transfer.bufers": 1}, "did you mean coop.transfer.buffers, .*TRANSFER__BUFFERS"),
        ({"coop.barrier_time": 1}, "did you mean coop.barrier-timeout, .*BARRIER_TIMEOUT"),
        ({"coop_engine": "collective"}, "has coop-engine, .* did you mean coop.engine"),
        ({"coop.transfer": "1 GiB"}, "has coop.transfer, which nothing reads"),
        ({"coop": "collective"}, "has coop, which nothing reads; dask_coop has coop.engine, "),
        ({"coop.what.ever": 1}, "has coop.what.ever, which nothing reads; dask_coop has"),
    ],
)
@pytest.mark.parametrize("install", [False, True])
def test_unknown_keys_are_refused_with_the_nearest(given: Any, message: str, install: bool) -> None:
    x = da.ones(3, chunks=1)
    with (
        dc.installed() if install else nullcontext(),
        dask.config.set(given),
        pytest.raises(ValueError, match=message),
    ):
        (da if install else dc).sum(x)
    dc.sum(x)


@pytest.mark.parametrize(
    ("allowed", "words", "good", "bad"),
    [
        (["auto", True], "'auto' or True", ["auto", True], ["Auto", 1, False, None, "True"]),
        ([1], "1", [1], [True, 1.0, "1"]),
        (["a", "b", "c"], "'a', 'b' or 'c'", ["a", "c"], ["d", None, ["a"]]),
        ([config.COUNT], "a positive whole number", [1, 7], [0, -1, True, "2", 1.5, None]),
        (
            [config.SPAN],
            "a positive span of time such as '30s'",
            ["2s", "2000 ms", 2],
            [0, "-1s", "soon", None, True, [], "2 bytes", float("nan")],
        ),
        (
            [config.size(2048)],
            "a number of bytes such as '128 MiB', at least 2.00 kiB",
            ["2 kiB", 2048, 2048.0],
            ["2 kB", "much", None, True, {}, 2047, float("inf"), float("nan")],
        ),
    ],
)
def test_other_values_are_refused_with_those_that_are_allowed(
    allowed: list[Any], words: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        with dask.config.set({"coop.engine": value}):
            found = config.get("coop.engine", *allowed)
            assert found == (2 if allowed == [config.SPAN] else 2048 if "bytes" in words else value)
    for value in bad:
        message = rf"coop.engine must be {re.escape(words)}, got {re.escape(repr(value))}"
        with (
            dask.config.set({"coop.engine": value}),
            pytest.raises(ValueError, match=f"^{message}$" if value != {} else "must be"),
        ):
            config.get("coop.engine", *allowed)


def run(*command: str, **variables: str) -> str:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("DASK_")}
    environment |= {"PYTHONPATH": str(REPOSITORY), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


#: What the entry point is called with where dask_coop is installed; twice changes nothing.
REGISTERED = "import dask, _dask_coop, sys; _dask_coop.register(None); "


def test_dask_knows_the_defaults_without_an_import_of_the_package() -> None:
    code = f"{REGISTERED}print(dask.config.get('coop'), 'dask_coop' in sys.modules)"
    assert run(sys.executable, "-c", code) == f"{yaml.safe_load(FILE.read_text())['coop']} False"


def test_variables_of_the_environment_are_keys_but_for_those_with_one_underscore() -> None:
    code = f"{REGISTERED}import dask_coop as dc, dask.array as da; dc.sum(da.ones(3)); "
    code += "from dask_coop.graph.config import SPAN, get; print(get('coop.barrier-timeout', SPAN),"
    code += "get('coop.engine', 'collective'), get('coop.transfer.direct', True))"
    given = {"BARRIER_TIMEOUT": "3 s", "ENGINE": "collective", "TRANSFER__DIRECT": "true"}
    others = {"DASK_COOP_INSTALL": "0", "DASK_COOP_CACHE": "here", "DASK_COOP_PORTABLE": "1"}
    variables = {f"DASK_COOP__{name}": value for name, value in given.items()} | others
    assert run(sys.executable, "-c", code, **variables) == "3.0 collective True"


def test_a_refresh_keeps_the_defaults() -> None:
    code = f"{REGISTERED}dask.config.refresh(); print(dask.config.get('coop.fallback'))"
    assert run(sys.executable, "-c", code) == "allow"

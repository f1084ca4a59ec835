"""The types of results: the stub is the package's, and mypy knows what calls return."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import stubs

from dask_coop.api.groups import reduce, scan

#: Expressions, and their types for mypy: of a lazy array `x`, and of one with labels, `t`.
TYPES = {
    "dc.mean(x)": "dask.array.Array",
    "dc.mean(x, 0, engine='collective')": "numpy.ndarray[Any, Any] | Any",
    "dc.mean(t, axis=0)": "calls.Labels",
    "dc.mean(t, engine='collective')": "calls.Labels",
    "dc.mean([1, 2])": "dask.array.Array",
    "dc.cumsum(x, 0, engine='collective')": "dask.array.Array",
    "dc.cumsum(t, 0)": "calls.Labels",
    "dc.cumsum(t)": "calls.Labels | dask.array.Array",
    "dc.sort(t)": "calls.Labels",
    "dc.move_mean(x, 3)": "dask.array.Array",
    "dc.topk(x, 3, engine='collective')": "numpy.ndarray[Any, Any] | Any",
    "dc.bincount(x, engine='collective')": "numpy.ndarray[Any, Any] | Any",
    "dc.histogram(x).counts": "Any",
    "dc.describe(x)": "tuple[Any, .*fallback=dask_coop.api.call.results.Description]",
    "dc.groupby_reduce(x, [0], func='mean')": "tuple[dask.array.Array, *tuple[Any, ...]]",
    "dc.groupby_reduce(x, [0], func=['mean', 'std'])[0]": "tuple[dask.array.Array, ...]",
    "dc.groupby_scan(t, [0], func='cumsum')": "calls.Labels",
}

#: Mistakes, and what mypy says of them.
MISTAKES = {
    "dc.groupby_reduce(x, [0], func='meen')": 'incompatible type "str"',
    "dc.groupby_scan(x, [0], func='meen')": 'No overload variant of "groupby_scan"',
    "dc.rolling_mean": 'Module has no attribute "rolling_mean"',
    "dc.mean(x, axs=0)": 'did you mean "axis"',
    "dc.mean(x, engine='collectiv')": "No overload variant",
    "dc.mean(x, engine='collective').compute()": 'has no attribute "compute"',
}

_CALLS = """
from collections.abc import Hashable, Mapping
import dask.array as da
import dask_coop as dc

class Labels:
    dims: tuple[Hashable, ...] = ()
    sizes: Mapping[Hashable, int] = {}

x, t = da.Array(), Labels()
"""

#: In place of Dask, which takes mypy a minute.
_ARRAY = "from typing import Any\nclass Array:\n    def compute(self) -> Any: ...\n"

_SETTINGS = """
[mypy]
follow_imports = silent
[mypy-dask.*,distributed.*,numba.*,cupy.*,pandas.*,yaml.*,xarray.*]
ignore_missing_imports = true
[mypy-distributed.*,numba.*,pandas.*,xarray.*]
follow_imports = skip
# They have no types of results.
[mypy-dask_coop.chunks.*,dask_coop.cluster.*,dask_coop.cuda.*,dask_coop.graph.*,dask_coop.node.*]
follow_imports = skip
"""


def test_the_stub_is_that_of_the_package() -> None:
    pytest.importorskip("ruff")
    assert stubs.STUB.read_text() == stubs.page(), "python tools/stubs.py --write"


def test_names_of_statistics_and_scans_are_typed() -> None:
    assert get_args(reduce.StatisticName) == reduce.NAMES
    assert get_args(scan.ScanName) == tuple(scan.ROWS)


def test_mypy_knows_results_and_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    fake = tmp_path / "dask" / "array"
    fake.mkdir(parents=True)
    (fake.parent / "__init__.pyi").touch()
    (fake / "__init__.pyi").write_text(_ARRAY)
    (tmp_path / "mypy.ini").write_text(_SETTINGS)
    lines = [f"reveal_type({call})" for call in TYPES] + [*MISTAKES]
    (tmp_path / "calls.py").write_text("\n".join([_CALLS, *lines]))
    options = ["--config-file", "mypy.ini", "--cache-dir", "cache", "--no-pretty"]
    package = str(stubs.PACKAGE.parent)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "calls.py"],
        cwd=tmp_path,
        env={"MYPYPATH": f"{tmp_path}:{package}"},
        capture_output=True,
        text=True,
        check=False,
    )
    told: dict[int, str] = {}
    for number, text in re.findall(r"^calls\.py:(\d+): (.*)$", done.stdout, re.MULTILINE):
        told[int(number)] = told.get(int(number), "") + text
    first = len(_CALLS.splitlines()) + 1
    for number, (call, expected) in enumerate((TYPES | MISTAKES).items(), first + 1):
        said = told.get(number, "")
        if call in MISTAKES:
            assert expected in said, (call, said, done.stderr)
        else:
            revealed = said.partition('"')[2].rpartition('"')[0]
            is_it = revealed == expected or re.fullmatch(expected.replace("[", r"\["), revealed)
            assert is_it, (call, said, done.stderr)

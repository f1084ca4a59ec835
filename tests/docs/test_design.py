"""The pages are held to the tree: modules, paths, figures; and a walk of CONTRIBUTING.md works."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array.utils import same_keys
from test_architecture import MODULES, PACKAGE, imports, module_name

import dask_coop as dc
from dask_coop.algebra import monoids
from dask_coop.algebra.monoids import VAR, Field, MonoidRow
from dask_coop.algebra.statistics import SCANS, STATISTICS, ScanRow, StatisticRow, with_nan_forms
from dask_coop.api.call.public import like, logger

REPOSITORY = Path(__file__).parents[2]
DESIGN = REPOSITORY / "docs" / "design.md"
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
#: Where a page's paths may begin.
ROOTS = (REPOSITORY, PACKAGE)
SOURCES = ("dask_coop", "kernels", "benchmarks", "examples", "tests", "tools")


def is_face(path: Path) -> bool:
    """Tell whether a module is a package's face that defines nothing."""
    body = ast.parse(path.read_text()).body
    nodes = ast.Import | ast.ImportFrom | ast.Expr | ast.Assign
    return path.name == "__init__.py" and all(isinstance(node, nodes) for node in body)


def test_every_module_is_named_once() -> None:
    named = re.findall(r"^- `([\w/]+\.py)`: \S", DESIGN.read_text(), re.MULTILINE)
    there = {path.relative_to(PACKAGE).as_posix(): path for path in MODULES}
    assert not there.keys() - set(named) - {name for name, path in there.items() if is_face(path)}
    assert not set(named) - there.keys()
    assert len(named) == len(set(named))


def missing_files(text: str) -> set[str]:
    """Return the paths of Python and CUDA files in `text` that are not there."""
    files = {path for source in SOURCES for path in (REPOSITORY / source).rglob("*.*")}
    names = {path.name for path in files}
    found = set(re.findall(r"(?<![\w/.<-])[\w/]*\w\.(?:py|cuh)\b", text))
    return {
        name
        for name in found
        if (
            not any((root / name).is_file() for root in ROOTS) if "/" in name else name not in names
        )
    }


def missing_names(text: str) -> set[str]:
    """Return the dotted names of ours in `text` that are neither importable nor loggers."""
    names = set(re.findall(r"\bdask_coop(?:\.\w+)+", text)) - {logger.name}
    return {name for name in names if not is_there(name)}


def is_there(name: str) -> bool:
    thing: Any = importlib.import_module("dask_coop")
    path = "dask_coop"
    for part in name.split(".")[1:]:
        path += f".{part}"
        try:
            thing = getattr(thing, part, None) or importlib.import_module(path)
        except ImportError as error:
            # Modules of CuPy's are there without it.
            return error.name is not None and not error.name.startswith("dask_coop")
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_are_named_are_there(page: Path) -> None:
    assert not missing_files(page.read_text())
    assert not missing_names(page.read_text())


def test_the_test_above_sees_what_is_not_there() -> None:
    text = (
        "`chunks/gone.py`, graph/scan.py, gone.cuh, kernels/warp.cuh, dask_coop.gone, dask_coop.sum"
    )
    assert missing_files(text) == {"chunks/gone.py", "gone.cuh"}
    assert missing_names(text) == {"dask_coop.gone"}


def room(module: str) -> str:
    """Return the folder at the top of the package, or the module there, that `module` is in."""
    first = module.partition(".")[0]
    known = {"errors": "errors", "meters": "meters", "__main__": "cli"}
    is_folder = first and (PACKAGE / first).is_dir()
    return first if is_folder else known.get(first, "dask_coop")


def arrows() -> dict[str, set[str]]:
    """Return what each folder imports of others."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        package = ".".join(["dask_coop", *path.relative_to(PACKAGE).parts[:-1]])
        targets = imports(ast.parse(path.read_text()), package)
        ours = {room(t.partition(".")[2]) for t in targets if f"{t}.".startswith("dask_coop.")}
        here = room(module_name(path))
        found.setdefault(here, set()).update(ours - {here})
    return found


def test_the_figures_are_those_of_the_tree() -> None:
    above, floors = arrows(), 0
    count = sum(map(len, above.values()))
    left = dict(above)
    while leaves := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in leaves}
        floors += 1
    assert not left, "folders import one another in a circle"
    rooms = [path.parent.relative_to(PACKAGE).as_posix() for path in MODULES]
    largest = max(sorted(set(rooms)), key=rooms.count)
    assert (
        f"{floors} floors, {count} arrows between folders, {len(MODULES)} modules; the largest "
        f"folder is `{largest}/` with {rooms.count(largest)}; no circle."
    ) in " ".join(DESIGN.read_text().split())


def add(monkeypatch: pytest.MonkeyPatch, name: str, row: StatisticRow) -> None:
    """Add a row to the table of algebra/statistics.py."""
    for form, made in with_nan_forms({name: row}).items():
        monkeypatch.setitem(STATISTICS, form, made)


def test_a_reduction_is_two_rows_a_public_name_and_a_line_in_a_table_of_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The walk "Add a monoid" of CONTRIBUTING.md, with what each of three files would get."""
    # algebra/monoids.py and algebra/statistics.py
    bits = Field("bits", "element", lambda dtype: dtype.type(0), np.bitwise_or)
    row = MonoidRow("bitwise_or", (bits,), "biu", "BitwiseOr")
    monkeypatch.setattr(monoids, "BITWISE_OR", row, raising=False)
    add(monkeypatch, "bitwise_or", StatisticRow(row))

    # api/sums.py
    @like(dc.any)
    def bitwise_or() -> None:
        """Bitwise or of array elements over the given axes."""

    # tests
    array = np.random.default_rng(0).integers(-9, 2**20, (40, 30)).astype("i4")
    some = array % 3 == 0
    x, where = da.from_array(array, chunks=(7, 4)), da.from_array(some, chunks=5)
    for axis in (None, 0, (0, 1), -1):
        for keep, lazy in (
            (True, bitwise_or(x, axis)),
            (some, bitwise_or(x, axis, where=where)),
            (True, bitwise_or(x, axis, split_every=2)),
        ):
            expected = np.bitwise_or.reduce(array, axis, where=keep)
            assert lazy.dtype == expected.dtype
            np.testing.assert_array_equal(lazy.compute(scheduler="synchronous"), expected)
    masked = da.from_array(np.ma.array(array, mask=~some), chunks=(7, 4))
    found = bitwise_or(masked, 1).compute(scheduler="synchronous")
    np.testing.assert_array_equal(found, np.bitwise_or.reduce(array, 1, where=some))
    assert bitwise_or(x, keepdims=True).shape == (1, 1)
    assert same_keys(bitwise_or(x, 0), bitwise_or(x, 0))
    assert pickle.loads(pickle.dumps(row)) is row
    assert "bitwise_or" in str(dc.explain(bitwise_or(x)))
    scanned = dc.scan(x, row, axis=0).compute(scheduler="synchronous")
    np.testing.assert_array_equal(scanned, np.bitwise_or.accumulate(array, 0))

    # "Add a scan": a row and a public name of its own
    monkeypatch.setitem(SCANS, "cumulative_bits", ScanRow(row))

    @like(dc.cummax)
    def cumulative_bits() -> None:
        """Cumulative bitwise or of array elements along an axis."""

    scanned = cumulative_bits(x, 0, reverse=True).compute(scheduler="synchronous")
    np.testing.assert_array_equal(scanned[::-1], np.bitwise_or.accumulate(array[::-1], 0))
    labels = np.arange(30) % 4
    (of_groups, _) = dc.groupby_reduce(x, labels, func="bitwise_or")
    expected = [np.bitwise_or.reduce(array[:, labels == group], 1) for group in range(4)]
    np.testing.assert_array_equal(
        of_groups.compute(scheduler="synchronous"), np.transpose(expected)
    )
    with pytest.raises(TypeError, match="bitwise_or does not take dtype float64"):
        bitwise_or(da.ones(3))


def test_a_statistic_is_a_row_and_a_public_name_and_so_is_its_nan_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The walk "Add a statistic" of CONTRIBUTING.md: of arrays, of groups, and without NaN."""

    # algebra/statistics.py
    def standard_error(state: Any, *, ddof: float = 0, **given: Any) -> Any:
        return np.sqrt(STATISTICS["var"].finish(state, ddof=ddof, **given) / state[0])

    add(monkeypatch, "sem", StatisticRow(VAR, standard_error, ("ddof",)))

    # api/moments.py
    @like(dc.var)
    def sem() -> None:
        """Standard error of the mean over the given axes."""

    @like(sem)
    def nansem() -> None:
        """Standard error of the mean of what is not NaN."""

    # tests
    array = np.random.default_rng(0).random((40, 30))
    array[3, 5] = np.nan
    x, labels = da.from_array(array, chunks=(7, 4)), np.arange(30) % 4
    forms: dict[str, tuple[Any, Any, Any]] = {
        "sem": (sem, np.var, lambda a: np.full_like(a, 1.0)),
        "nansem": (nansem, np.nanvar, lambda a: ~np.isnan(a)),
    }
    for name, (function, variance, counted) in forms.items():

        def expected(a: Any, axis: Any, variance: Any = variance, counted: Any = counted) -> Any:
            return np.sqrt(variance(a, axis, ddof=1) / counted(a).sum(axis))

        for axis in (None, 0, (0, 1), -1):
            lazy = function(x, axis, ddof=1)
            assert lazy.name.startswith(name)
            np.testing.assert_allclose(lazy.compute(scheduler="sync"), expected(array, axis), 1e-12)
        kwargs = {"ddof": 1}
        (lazy, _) = dc.groupby_reduce(x, labels, func=name, finalize_kwargs=kwargs)
        of_groups = [expected(array[:, labels == group], 1) for group in range(4)]
        np.testing.assert_allclose(
            lazy.compute(scheduler="sync"), np.transpose(of_groups), 1e-12, 1e-15
        )
        assert inspect.signature(function) == inspect.signature(dc.var)
        assert (function.__name__, function.__module__) == (name, __name__)
        assert "ddof : float\n" in function.__doc__

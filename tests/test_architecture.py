"""The design, held: which layer may import which, what an import costs, what the public sees."""

from __future__ import annotations

import ast
import doctest
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dask_coop

PACKAGE = Path(dask_coop.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

#: The layer of a module, by the first part of its name below dask_coop.
LAYERS = {
    "front": {
        "",
        "__main__",
        "cli",
        "decoding",
        "explanations",
        "figures",
        "machine",
        "node",
        "placement",
        "plugin",
        "readable",
        "readers",
        "runners",
        "stage_runs",
        "stages",
        "summaries",
        "workers",
    },
    "public": {
        "arguments",
        "binning",
        "counts",
        "central",
        "custom",
        "dates",
        "durations",
        "extrema",
        "fields",
        "histograms",
        "joint",
        "laws",
        "linear",
        "moments",
        "nan_moments",
        "nans",
        "norms",
        "reductions",
        "running",
        "scan_arguments",
        "scans",
        "ufuncs",
    },
    "collective": {"batches", "collective", "engine", "rounds", "rounds_scheduler"},
    "collections": {"expressions", "fallback", "keywords", "planning"},
    "spine": {"eager", "spine", "spine_scan", "spine_sources"},
    "chunks": {"chunks"},
    "monoids": {
        "binned",
        "bins",
        "compensated",
        "counted",
        "edges",
        "identities",
        "merges",
        "monoids",
        "powers",
        "semirings",
        "sweeps",
        "ticks",
    },
    "cuda": {"cuda"},
    "errors": {"errors"},
}
#: What a layer may import besides itself: public -> spine -> monoids, chunks -> cuda.
BELOW = {
    "front": {
        "public",
        "collective",
        "collections",
        "spine",
        "chunks",
        "monoids",
        "cuda",
        "errors",
    },
    "public": {"collective", "collections", "spine", "chunks", "monoids", "errors"},
    "collective": {"collections", "spine", "chunks", "monoids", "errors"},
    "collections": {"errors"},
    "spine": {"chunks", "monoids", "errors"},
    "chunks": {"monoids", "cuda", "errors"},
    "monoids": {"errors"},
    "cuda": {"errors"},
    "errors": set(),
}
#: What comes from elsewhere and would give a layer another one's job.
FOREIGN = {
    "public": {"cupy", "cuda", "distributed"},
    "collective": {"cupy", "cuda"},
    "collections": {"cupy", "cuda", "distributed"},
    "spine": {"cupy", "cuda", "distributed"},
    "chunks": {"dask", "distributed"},
    "monoids": {"cupy", "cuda", "dask", "distributed"},
    "cuda": {"dask", "distributed"},
    "errors": {"cupy", "cuda", "dask", "distributed"},
}


def module_name(path: Path) -> str:
    """Return what follows "dask_coop." in the dotted name of the module at `path`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def layer(name: str) -> str:
    """Return the layer of the module `name`, which may also be a name that the package exports."""
    first = name.partition(".")[0]
    return next((layer for layer, modules in LAYERS.items() if first in modules), "front")


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the absolute dotted name of all that is imported, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: -node.level + 1 or None] if node.level else []
            start = ".".join([*up, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def forbidden(source: str, name: str) -> list[str]:
    """Return the imports in the module `name` that point against the layers."""
    is_package = (PACKAGE / name.replace(".", "/")).is_dir()
    package = f"dask_coop.{name}".rstrip(".")
    package = package if is_package else package.rpartition(".")[0]
    mine, bad = layer(name), []
    for target in imports(ast.parse(source), package):
        root, _, rest = target.partition(".")
        if root == "dask_coop":
            if layer(rest) != mine and layer(rest) not in BELOW[mine]:
                bad.append(target)
        elif root in FOREIGN.get(mine, ()):
            bad.append(target)
    return bad


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    assert forbidden(path.read_text(), module_name(path)) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("chunks.numpy", "from dask_coop import spine"),
        ("chunks.cuda", "import dask_coop.spine"),
        ("chunks.cuda", "def f():\n    from dask_coop.spine import reduction"),
        ("chunks", "import dask.array as da"),
        ("chunks.numpy", "from dask_coop import histogram"),
        ("spine", "import cupy"),
        ("spine", "from dask_coop.cuda.launch import launch"),
        ("spine", "from dask_coop import reductions"),
        ("monoids", "from cuda.core import Program"),
        ("monoids", "from dask_coop.chunks import kind"),
        ("bins", "import dask"),
        ("reductions", "from dask_coop.cuda import compiler"),
        ("scans", "from dask_coop.cli import main"),
        ("spine", "from dask_coop.collective import Collective"),
        ("rounds", "import cupy"),
        ("cuda.launch", "from dask_coop.monoids import SUM"),
        ("cuda.launch", "from ..chunks import kind"),
        ("cuda.launch", "from .. import chunks"),
        ("chunks", "from .. import spine"),
        ("chunks", "from ..spine import scan"),
    ],
)
def test_the_test_above_sees_an_import_that_points_up(name: str, source: str) -> None:
    assert forbidden(source, name)


def test_every_module_has_a_layer_and_every_layer_a_module() -> None:
    known = {module for modules in LAYERS.values() for module in modules}
    found = {module_name(path).partition(".")[0] for path in MODULES}
    assert found <= known, f"give {found - known} a layer here"
    layers = [module for layer in ("public", "spine", "monoids") for module in LAYERS[layer]]
    assert found >= set(layers)


def test_the_engine_for_cuda_is_only_named_where_it_is_chosen() -> None:
    """`import_module` would get past the test of imports."""
    users = {module_name(p) for p in MODULES if "import_module(" in p.read_text()}
    assert users <= {"", "chunks"}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_modules_are_short(path: Path) -> None:
    """Lines of code, that is: what explains them does not count."""
    source = path.read_text()
    explained = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code = [
        line
        for number, line in enumerate(source.splitlines(), 1)
        if number not in explained and line.strip() and not line.lstrip().startswith("#")
    ]
    assert len(code) <= 400


HEAVY = (
    "cupy",
    "cuda",
    "dask_cuda",
    "distributed",
    "h5py",
    "matplotlib",
    "numba",
    "skimage",
    "zarr",
)


def imported_by(code: str) -> set[str]:
    """Return the top-level modules of which a new process imports anything to run `code`."""
    # An editable CUDA package may import itself when Python starts.
    code = f"""import sys
before = set(sys.modules)
{code}
print(*{{name.partition('.')[0] for name in set(sys.modules) - before}})"""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


def test_importing_the_package_costs_nothing_that_only_some_need() -> None:
    found = imported_by("import dask_coop")
    assert "dask_coop" in found
    assert found.isdisjoint(HEAVY)


def test_computing_on_numpy_chunks_imports_no_gpu_library() -> None:
    found = imported_by(
        "import dask, dask.array as da, dask_coop as dc\n"
        "x = da.arange(9, chunks=2)\n"
        "counts, edges = dc.histogram(x)\n"
        "dask.compute(counts, edges, dc.cumsum(x), *dc.describe(x), scheduler='threads')"
    )
    assert found.isdisjoint({"cupy", "cuda", "dask_cuda"})


PUBLIC = [getattr(dask_coop, name) for name in dask_coop.__all__]
FUNCTIONS = [thing for thing in PUBLIC if inspect.isfunction(thing)]


def sections(docstring: str) -> dict[str, str]:
    """Return the sections of a numpydoc docstring by their titles."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_public_functions_are_documented(function: Any) -> None:
    assert function.__doc__
    found = sections(function.__doc__)
    assert list(found)[:3] == ["Parameters", "Returns", "Raises"]
    entries = re.findall(r"^(\w[\w, ]*)(?: :.*)?$", found["Parameters"], flags=re.MULTILINE)
    named = {name.strip() for entry in entries for name in entry.split(",")}
    assert named == set(inspect.signature(function).parameters)
    assert function.__doc__.partition("\n")[0].endswith(".") or ";" in function.__doc__


def test_every_public_name_is_there_and_sorted() -> None:
    assert dask_coop.__all__ == sorted(dask_coop.__all__)
    assert all(thing.__doc__ for thing in PUBLIC)


def test_examples_in_public_docstrings_run() -> None:
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for thing in PUBLIC:
        for example in finder.find(thing, thing.__name__):
            runner.run(example)
    assert runner.failures == 0
    assert runner.tries >= 10

"""The design, held: which layer may import which, what an import costs, what the public sees."""

from __future__ import annotations

import ast
import doctest
import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dask_coop

PACKAGE = Path(dask_coop.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

#: What the modules of a folder may import besides one another; "" is the package's face.
FOLDERS = {
    "": {"api", "cli", "cluster", "node", "algebra", "errors"},
    "cli": {
        "",
        "api",
        "cluster",
        "node",
        "graph",
        "chunks",
        "chunks.cupy",
        "chunks.numpy",
        "algebra",
        "compiled",
        "cuda",
        "errors",
    },
    "testing": {""},
    # Methods of xarray's objects, made of what the package's face has.
    "xarray": {"", "api", "chunks", "errors"},
    "api": {"cluster", "node", "graph", "chunks", "files", "files.gpu", "algebra", "errors"},
    "cluster": {"graph", "chunks", "chunks.cupy", "algebra", "cuda", "errors", "meters"},
    "node": {"graph", "chunks", "chunks.cupy", "algebra", "cuda", "errors"},
    "graph": {"chunks", "algebra", "errors"},
    "chunks": {"chunks.numpy", "files", "algebra", "errors", "meters"},
    "files": {"compiled", "errors", "meters"},
    "files.gpu": {"files", "cuda", "compiled", "errors"},
    "chunks.numpy": {"chunks", "algebra", "compiled", "errors"},
    "chunks.cupy": {"chunks", "files.gpu", "algebra", "cuda", "errors", "meters"},
    "algebra": {"errors"},
    "cuda": {"compiled", "errors", "meters"},
    "compiled": set(),
    "errors": set(),
    "meters": set(),
}
#: What comes from elsewhere and would give a folder another one's job.
FOREIGN = {
    "xarray": {"cupy", "cuda", "distributed"},
    "api": {"cupy", "cuda", "distributed"},
    "cluster": {"cupy", "cuda"},
    "graph": {"cupy", "cuda", "distributed"},
    "chunks": {"cupy", "cuda", "dask", "distributed"},
    "files": {"cupy", "cuda", "dask", "distributed"},
    "chunks.numpy": {"cupy", "cuda", "dask", "distributed"},
    "chunks.cupy": {"dask", "distributed"},
    "algebra": {"cupy", "cuda", "dask", "distributed"},
    "cuda": {"dask", "distributed"},
    "compiled": {"cupy", "cuda", "dask", "distributed"},
    "errors": {"cupy", "cuda", "dask", "distributed"},
    "meters": {"cupy", "cuda", "dask", "distributed"},
}
#: Who waits for a cluster's values, and who warms its workers' GPUs, once they are asked to.
EXEMPT = {("api.call.public", "distributed"), ("cluster.plugin", "cupy")}


def dotted(path: Path) -> str:
    """Return the dotted name of the module at a path that is relative to its root."""
    return ".".join(part for part in path.with_suffix("").parts if part != "__init__")


def module_name(path: Path) -> str:
    """Return what follows "dask_coop." in the dotted name of the module at `path`."""
    return dotted(path.relative_to(PACKAGE))


def folder(name: str) -> str:
    """Return the folder of the module `name`, or of a name that one exports."""
    first, _, rest = name.partition(".")
    inner = f"{first}.{rest.partition('.')[0]}"
    return inner if inner in FOLDERS else first if first in FOLDERS else ""


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
    mine, bad = folder(name), []
    for target in imports(ast.parse(source), package):
        root, _, rest = target.partition(".")
        if root == "dask_coop":
            if folder(rest) not in {mine, *FOLDERS[mine]}:
                bad.append(target)
        elif root in FOREIGN.get(mine, ()) and (name, root) not in EXEMPT:
            bad.append(target)
    return bad


#: How Dask writes layers of tasks, and the modules of api/ that import it for another reason.
LAYERS = ("dask.highlevelgraph", "dask.task_spec", "dask.blockwise")
READERS = {
    "api.call.planning": "lowers the expressions of Dask's query planning",
    "api.call.reading": "has arrays of files read otherwise, in layers that others have written",
    "api.explain": "reads the graphs that others have written",
}


def test_only_graph_writes_layers_for_the_public_functions() -> None:
    writers = {
        module_name(path)
        for path in MODULES
        if module_name(path).startswith("api.")
        and any(name.startswith(LAYERS) for name in imports(ast.parse(path.read_text()), ""))
    }
    assert writers == set(READERS)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    assert forbidden(path.read_text(), module_name(path)) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("chunks.numpy.scan", "from dask_coop import graph"),
        ("chunks.cupy", "import dask_coop.graph.scan"),
        ("chunks.cupy.scan", "def f():\n    from dask_coop.graph.reduce import reduction"),
        ("chunks", "import dask.array as da"),
        ("chunks.states", "import cupy"),
        ("chunks.numpy.backend", "from dask_coop import histogram"),
        ("chunks.numpy.backend", "from dask_coop.chunks.cupy import scan"),
        ("chunks.numpy.backend", "from dask_coop.cuda import launch"),
        ("chunks.cupy.scan", "from dask_coop.chunks.numpy import scan"),
        ("graph.reduce", "import cupy"),
        ("graph.reduce", "from dask_coop.cuda.launch import launch"),
        ("graph.scan", "from dask_coop.api import sums"),
        ("graph.scan", "from dask_coop.cluster.client import Collective"),
        ("algebra.monoids", "from cuda.core import Program"),
        ("algebra.monoids", "from dask_coop.chunks import kind"),
        ("algebra.bins", "import dask"),
        ("api.sums", "from dask_coop.cuda import compiler"),
        ("api.sums", "from distributed import wait"),
        ("api.cumulative", "from dask_coop.cli.main import main"),
        ("api.labelled", "from dask_coop.xarray.groups import reduce_groups"),
        ("xarray.groups", "from dask_coop.graph.grouped import Known"),
        ("cluster.worker", "import cupy"),
        ("node.find", "from dask_coop.cluster import client"),
        ("cuda.launch", "from dask_coop.algebra.monoids import SUM"),
        ("cuda.launch", "from ..chunks import kind"),
        ("cuda.launch", "from .. import chunks"),
        ("graph", "from .. import api"),
        ("graph", "from ..api import sums"),
    ],
)
def test_the_test_above_sees_an_import_that_points_up(name: str, source: str) -> None:
    assert forbidden(source, name)


def test_every_module_lies_in_a_folder_of_the_list() -> None:
    found = {module_name(path).partition(".")[0] for path in MODULES} - {"", "__main__"}
    assert found == {folder for folder in FOLDERS if folder and "." not in folder}
    # Stubs, a marker for type checkers and the configuration's defaults hold no code.
    no_code = {"__pycache__", "__init__.pyi", "py.typed", "dask_coop.yaml"}
    entries = {entry.name for entry in PACKAGE.iterdir()} - no_code
    assert len(entries) <= 16


#: Imports that would close a circle, and why they may.
ROUND = {
    ("dask_coop.chunks.backend", "dask_coop.chunks.distinct"): (
        "for types: what a backend does with a monoid of distinct values"
    ),
    ("dask_coop.chunks.backend", "dask_coop.chunks.labels"): (
        "for types: the groups whose codes a backend returns"
    ),
}


def test_no_imports_go_round_in_a_circle() -> None:
    """Wherever they stand: in functions, for types, and in what lies beside the package."""
    root = PACKAGE.parent
    paths = [*MODULES, *root.glob("_dask_coop*.py"), *(root / "benchmarks").rglob("*.py")]
    names = {dotted(path.relative_to(root)): path for path in paths}

    def module_of(target: str) -> str:
        while target and target not in names:
            target = target.rpartition(".")[0]
        return target

    above: dict[str, set[str]] = {}
    for name, path in names.items():
        package = ".".join(path.relative_to(root).parts[:-1])
        targets = imports(ast.parse(path.read_text()), package)
        above[name] = {module_of(target) for target in targets} - {name, ""}
    for (name, target), reason in ROUND.items():
        assert reason
        above[name].remove(target)
    while leaves := {name for name, needs in above.items() if not needs & above.keys()}:
        above = {name: needs for name, needs in above.items() if name not in leaves}
    assert not above


def test_chunk_backends_are_only_named_where_one_is_chosen() -> None:
    """`import_module` would get past the test of imports."""
    users = {module_name(p) for p in MODULES if "import_module(" in p.read_text()}
    # The table of loops imports its own folder's, where Numba is there.
    assert users <= {"", "chunks.backend", "chunks.numpy.loop_table"}


def test_one_module_alone_has_numba_keep_machine_code() -> None:
    """It looks at the folder first, for what is kept there is unpickled."""
    compilers = {"jit", "njit", "vectorize", "guvectorize", "cfunc", "stencil", "enable_caching"}
    users = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = set()
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "numba":
                names = {node.attr}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numba"):
                names = {alias.name for alias in node.names}
            if names & compilers:
                users.add(module_name(path))
    assert users == {"compiled.jit"}


def is_face(path: Path) -> bool:
    """Tell whether a module is what a folder is imported as."""
    return path.name == "__init__.py"


FACES = [path for path in MODULES if is_face(path) and path.parent != PACKAGE]


#: What `da.` may be asked in modules that build graphs.
OF_DASK = {"array_expr_enabled", "empty", "from_delayed", "broadcast_arrays"}
OF_DASK |= {"swapaxes", "matmul", "outer", "tensordot"}
#: Arrays for functions of Dask, which take its own.
OF_DASK |= {"asanyarray"}


@pytest.mark.parametrize(
    "path", [*(PACKAGE / "api").rglob("*.py"), *(PACKAGE / "graph").rglob("*.py")], ids=str
)
def test_graphs_are_built_by_functions_of_graphs(path: Path) -> None:
    """With query planning, those in `dask.array` make expressions of what has become graphs."""
    called = {
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "da"
    }
    assert called - OF_DASK - {"get_axis_num"} == set()


@pytest.mark.parametrize("path", FACES, ids=module_name)
def test_faces_of_folders_hold_no_code(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        code = ast.unparse(node)
        assert isinstance(node, ast.Expr | ast.Import | ast.ImportFrom) or "__all__ = " in code


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


#: The most modules that a folder lists.
MOST_MODULES = 24
#: Folders that list more, with how many: the numbers may only fall.
WIDE: dict[str, int] = {}


def test_a_folder_can_be_read_at_a_glance() -> None:
    counts = Counter(str(path.parent.relative_to(PACKAGE)) for path in MODULES if not is_face(path))
    wide = {name: count for name, count in counts.items() if count > MOST_MODULES}
    assert wide.keys() == WIDE.keys()
    assert all(count <= WIDE[name] for name, count in wide.items())


#: Modules of fewer than 60 lines, and why each has a file to itself.
SMALL = {
    "__main__.py": "Python's name for `python -m dask_coop`",
    "algebra/scan_spec.py": "every layer hands it on, and needs nothing else of a scan",
    "api/call/expressions.py": "imports dask.array's expressions, which older versions do not have",
    "chunks/numpy/loop_table.py": "whatever has compiled loops asks it for them, without Numba",
    "chunks/numpy/matmul.py": "one operation of a backend",
    "chunks/numpy/select.py": "one operation of a backend",
    "chunks/numpy/sorting.py": "distinct values and order statistics sort alike",
    "chunks/one_by_one.py": "what backends without multi-chunk launches import",
    "cli/describe/members.py": "every reader of files with several arrays asks it",
    "cli/output.py": "every command prints by it",
    "files/lazy.py": "imports xarray, which not all have",
    "cluster/preload.py": "the documented name of `--preload`",
    "cuda/programs/base.py": "every generator of programs starts from it",
}


def test_a_module_is_worth_a_file() -> None:
    lengths = {path.relative_to(PACKAGE).as_posix(): path for path in MODULES if not is_face(path)}
    found = {name for name, path in lengths.items() if len(path.read_text().splitlines()) < 60}
    assert found == SMALL.keys()
    # This number may only fall.
    assert len(SMALL) <= 13


HEAVY = (
    "boost_histogram",
    "cupy",
    "cuda",
    "dask_cuda",
    "distributed",
    "h5py",
    "hist",
    "matplotlib",
    "numba",
    "pint",
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
#: What is about this library, and takes no arrays.
OF_NO_ARRAYS = {"combine", "install", "installed", "report", "uninstall"}
FUNCTIONS = [f for f in PUBLIC if inspect.isfunction(f) and f.__name__ not in OF_NO_ARRAYS]


def sections(docstring: str) -> dict[str, str]:
    """Return the sections of a numpydoc docstring by their titles."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_public_functions_are_documented(function: Any) -> None:
    assert function.__doc__
    found = sections(function.__doc__)
    assert list(found)[:3] == ["Parameters", "Returns", "Raises"]
    entries = re.findall(r"^(\*{0,2}\w[\w, ]*)(?: :.*)?$", found["Parameters"], flags=re.MULTILINE)
    named = {name.strip("* ") for entry in entries for name in entry.split(",")}
    assert named == set(inspect.signature(function).parameters)
    assert function.__doc__.partition("\n")[0].endswith(".") or ";" in function.__doc__


#: Parameters of which functions of a kind have one, and others none; but for a scan that has
#: flox's, of which `groupby_reduce` has all but one.
TELLING = {"reduction": {"keepdims"}, "scan": {"include_initial", "segments", "dx"}}


def test_public_functions_are_of_the_kind_that_they_declare() -> None:
    kinds = {}
    for path in (PACKAGE / "api").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            made = [ast.unparse(d) for d in getattr(node, "decorator_list", ())]
            if not isinstance(node, ast.FunctionDef) or not made:
                continue
            if made[0].startswith("like("):
                # Bases stand above what is like them.
                kinds[node.name] = kinds[made[0].strip(")").partition("(")[2].partition(",")[0]]
            elif "public(" in made[0]:
                (kinds[node.name],) = re.findall(r"^public\('(\w+)'", made[0])
    for name, kind in kinds.items():
        parameters = inspect.signature(getattr(dask_coop, name)).parameters
        assert ("engine" in parameters) == (kind != "blockwise"), name
        for telling, names in TELLING.items() if name != "groupby_scan" else ():
            assert bool(names & {*parameters}) == (kind == telling), name
    assert kinds.keys() == {f.__name__ for f in FUNCTIONS} - {"explain"}


def test_functions_below_the_public_ones_take_few_parameters() -> None:
    """Eight at most: what many functions hand on travels as one value."""
    for path in (PACKAGE / "api").rglob("*.py"):
        body = ast.parse(path.read_text()).body
        below = [node for node in body if getattr(node, "name", "") not in dask_coop.__all__]
        for node in (inner for outer in below for inner in ast.walk(outer)):
            if isinstance(node, ast.FunctionDef):
                given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                assert len(given) <= 8, f"{node.name} in {path.name}"


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

"""Below api/, a parameter has a default only if some call in the package gives it.

One that only tests give is one too many: tests use what is there for everybody.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from test_architecture import MODULES, module_name

import dask_coop

Trees = dict[str, ast.Module]

BELOW = ("graph", "chunks", "algebra", "cuda", "node", "cluster", "compiled")

#: Parameters that are given where this test does not look, and where that is.
GIVEN_ELSEWHERE = {
    **dict.fromkeys(
        (
            *(f"algebra.statistics._skew({name})" for name in ("bias", "skipna")),
            *(f"algebra.statistics._kurtosis({name})" for name in ("bias", "fisher", "skipna")),
        ),
        "callers of a row's `finish` give it",
    ),
    "algebra.statistics._spread(ddof)": "callers of a row's `finish` give it",
    "algebra.statistics._spread(masked)": "callers of a row's `finish` give it",
    "algebra.statistics._spread(skipna)": "callers of a row's `finish` give it",
    "cluster.monitor.performance_report(code)": "distributed calls this handler",
    **dict.fromkeys(
        (
            *(f"graph.tasks.prefixes({name})" for name in ("above", "position")),
            *(f"graph.signals.filters.prefixes({name})" for name in ("above", "position")),
        ),
        "the spine of a scan gives it to either",
    ),
    "graph.unique.find(index)": "a task gives it, from a dictionary of keywords",
    "graph.unique.find(origin)": "a task gives it, from a dictionary of keywords",
    "graph.windows.lift_pairs(threads)": "a task calls it in the place of another function",
}


class Call(NamedTuple):
    """What a call gives: how many arguments by position, and which by name; None for any."""

    positional: float
    keywords: set[str | None] | None

    def gives(self, position: float, name: str) -> bool:
        return self.positional > position or self.keywords is None or name in self.keywords


class Calls:
    """The calls of some modules.

    A function is known by its module and its name, "graph.scan.make", where an import tells the
    module, or else by its name alone.
    """

    def __init__(self, trees: Trees) -> None:
        self._functions = {name for module in trees.items() for name in functions(*module).values()}
        self._calls: dict[str, list[Call]] = defaultdict(list)
        self._aliases: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for module, tree in trees.items():
            known = functions(module, tree) | dict(imports(tree))
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    self._add(node, known)
                elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    for function, count, _ in references(node.value):
                        for target in getattr(node, "targets", None) or [node.target]:
                            alias = self._name(target, {}), count
                            self._aliases[self._name(function, known)].add(alias)

    def of(self, *names: str) -> Iterator[Call]:
        """Yield the calls of a function that has these names, or of what it was assigned to."""
        for name in names:
            yield from self._calls[name]
            for alias, count in self._aliases[name] - {("", 0)}:
                for call in self._calls[alias]:
                    yield Call(call.positional + count, call.keywords)

    def _add(self, node: ast.Call, known: dict[str, str]) -> None:
        behind = [(node.func, node.args)]
        # Tasks and threads are given a function, and behind it what they call it with.
        behind += [(argument, node.args[i:]) for i, argument in enumerate(node.args, 1)]
        for expression, arguments in behind:
            for function, count, keywords in references(expression):
                name = self._name(function, known)
                # A variable may have the name of a function.
                if isinstance(function, ast.Name) and expression is not node.func:
                    name *= name in self._functions
                words = {word.arg for word in (*keywords, *node.keywords)}
                starred = any(isinstance(argument, ast.Starred) for argument in arguments)
                positional = float("inf") if starred else count + len(arguments)
                self._calls[name].append(Call(positional, None if None in words else words))

    def _name(self, function: ast.expr, known: dict[str, str]) -> str:
        if isinstance(function, ast.Attribute):
            holder = function.value.id if isinstance(function.value, ast.Name) else ""
            full = f"{known.get(holder)}.{function.attr}"
        else:
            last = getattr(function, "id", "")
            full = known.get(last, last)
        # Modules hand on what lies in others.
        return full if full in self._functions else full.rpartition(".")[2]


def functions(module: str, tree: ast.Module) -> dict[str, str]:
    """Return the full names of the functions and classes that a module defines, by their names."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, kinds)}


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield what is imported from this package: what it is called, and its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("dask_coop."):
            home = f"{node.module}.".partition(".")[2]
            yield from ((alias.asname or alias.name, home + alias.name) for alias in node.names)


def references(node: ast.expr) -> Iterator[tuple[ast.expr, int, list[ast.keyword]]]:
    """Yield the functions that an expression may stand for, and what they have been given."""
    if isinstance(node, ast.Name | ast.Attribute):
        yield node, 0, []
    elif isinstance(node, ast.IfExp):
        yield from references(node.body)
        yield from references(node.orelse)
    elif isinstance(node, ast.Call) and node.args:
        # Decorators and compilers give a function nothing.
        is_partial = isinstance(node.func, ast.Name) and node.func.id == "partial"
        for function, count, keywords in references(node.args[0]):
            more = len(node.args) - 1
            yield function, count + more * is_partial, keywords + node.keywords * is_partial


def parameters(tree: ast.Module) -> Iterator[tuple[str, float, str]]:
    """Yield functions, but for the methods of public classes, with each parameter of a default."""
    holders = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node, holder in holders.items():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_method = isinstance(holder, ast.ClassDef)
        if is_method and holder.name in dask_coop.__all__:
            continue
        function = holder.name if is_method and node.name == "__init__" else node.name
        bound = is_method and "staticmethod" not in map(ast.unparse, node.decorator_list)
        taken: list[Any] = node.args.posonlyargs + node.args.args
        for position in range(len(taken) - len(node.args.defaults), len(taken)):
            yield function, position - bound, taken[position].arg
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is not None:
                yield function, float("inf"), argument.arg


def never_given(trees: Trees) -> set[str]:
    """Return the parameters below api/ that no call gives."""
    calls = Calls(trees)
    return {
        f"{module}.{function}({name})"
        for module, tree in trees.items()
        if module.partition(".")[0] in BELOW
        for function, position, name in parameters(tree)
        if not any(
            call.gives(position, name) for call in calls.of(f"{module}.{function}", function)
        )
    }


def test_every_parameter_below_the_api_is_given_by_a_call() -> None:
    trees = {module_name(path): ast.parse(path.read_text()) for path in MODULES}
    assert never_given(trees) == GIVEN_ELSEWHERE.keys()


def test_the_test_above_sees_what_is_given() -> None:
    sources = {
        "chunks.one": "def f(a, b=1, *, c=2): ...\ndef g(a=1): ...\nfast = jit(f)",
        "graph.two": "from dask_coop.chunks import one\nfrom dask_coop.chunks.one import g\n{}",
    }
    for call, left in (
        ("one.f(1)\ng(*x)", "bc"),
        ("one.f(1, 2)\ng(1)", "c"),
        ("Task(key, one.f, 1, 2, c=3)\ng(a=1)", ""),
        ("run(partial(one.f, 1), 2)\ng(**x)", "c"),
        ("other = partial(one.f, 1)\nother(2)\ng(1)", "c"),
        ("one.fast(1, c=2)\ng(1)", "b"),
        ("run(one.f if x else g, 1, 2)", "c"),
        ("f(1, 2, c=3)\ng(1)", ""),
        ("elsewhere.g(1)\none.f(1, **x)", ""),
    ):
        trees = {name: ast.parse(source.format(call)) for name, source in sources.items()}
        assert never_given(trees) == {f"chunks.one.f({name})" for name in left}, call
    trees["graph.two"] = ast.parse("from dask_coop.chunks.three import g\ng(1)\nf(1, 2, c=3)")
    trees["chunks.three"] = ast.parse("def g(a): ...")
    assert never_given(trees) == {"chunks.one.g(a)"}

"""Write dask_coop/__init__.pyi: the public functions with the types of their results.

``python tools/stubs.py --write`` writes it anew. Decorators can't tell type checkers that a result
depends on ``engine=`` or on labels, so overloads do: an array with labels in, one out; a value by
``engine="collective"``; and else a lazy array. A test checks the file against the package.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dask_coop
from dask_coop.api.call import labelled, public

PACKAGE = Path(dask_coop.__file__).parent
STUB = PACKAGE / "__init__.pyi"

HEAD = '''# Written by tools/stubs.py.

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

import dask.array as da
import numpy as np

{imports}

__version__: str

class Labelled(Protocol):
    """An xarray.DataArray or an xarray.Variable."""

    @property
    def dims(self) -> tuple[Hashable, ...]: ...
    @property
    def sizes(self) -> Mapping[Hashable, int]: ...

_L = TypeVar("_L", bound=Labelled)

#: What is computed at once: an array or a scalar of NumPy.
Value: TypeAlias = np.ndarray[Any, Any] | Any

{functions}

async def dask_setup(node: Any) -> None: ...
def load_ipython_extension(ipython: Any) -> None: ...
def unload_ipython_extension(ipython: Any) -> None: ...

__all__ = {names}
'''

#: The names that HEAD has.
KNOWN = {"Any", "Literal", "Mapping", "Sequence", "da", "np", "os", "int", "str", "bool", "float"}
KNOWN |= {"tuple", "list", "dict", "slice", "None"}

LAZY = "da.Array"
#: What groups are called with decides whether there is one result, or a tuple of them.
GROUPS = (
    ("StatisticName | Monoid", f"tuple[{LAZY}, *tuple[Any, ...]]"),
    ("Sequence[StatisticName | Monoid]", f"tuple[tuple[{LAZY}, ...], *tuple[Any, ...]]"),
)


def page() -> str:
    """Return the text of the file, as ruff formats it."""
    imports: dict[str, set[str]] = {}
    functions = []
    for name in dask_coop.__all__:
        value = getattr(dask_coop, name)
        if value in public._recipes:
            functions.extend(overloads(name, value))
            for used, module in names_of(value):
                public_too = f" as {used}" if used in dask_coop.__all__ else ""
                imports.setdefault(module, set()).add(f"{used}{public_too}")
        else:
            imports.setdefault(value.__module__, set()).add(f"{name} as {name}")
    imports["dask_coop.algebra"] = {"monoids as monoids"}
    lines = (
        f"from {module} import {', '.join(sorted(imports[module]))}" for module in sorted(imports)
    )
    text = HEAD.format(
        imports="\n".join(lines), functions="\n".join(functions), names=dask_coop.__all__
    )
    return _ruff(_ruff(text, "check", "--fix", "--select=I", "--quiet"), "format")


def _ruff(text: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(STUB), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


def overloads(name: str, function: Any) -> Iterator[str]:
    """Yield the definitions of a public function."""
    signature, kind = inspect.signature(function), public._recipes[function].kind
    result = str(signature.return_annotation)
    # The array, or whatever else decides, the result, and the types of other parameters.
    variants: list[tuple[str, dict[str, str]]] = [(result, {})]
    if name == "groupby_reduce":
        variants = [(returns, {"func": func}) for func, returns in GROUPS]
    elif result == LAZY:
        first = next(iter(signature.parameters))
        if kind in ("reduction", "selection", "histogram"):
            variants.insert(0, ("Value", {"engine": 'Literal["collective"]'}))
        variants[-1:] = [(LAZY, {"engine": "Engine"})] if len(variants) > 1 else variants[-1:]
        if keeps_labels(name, kind):
            axis = signature.parameters.get("axis")
            line: dict[str, str] = {}
            # Flattened arrays have no labels, unless they are lines.
            if kind == "scan" and axis is not None and "None" in str(axis.annotation):
                variants.insert(0, ("_L | da.Array", {first: "_L", "axis": "None"}))
                line = {"axis": "int"}
            variants.insert(0, ("_L", {first: "_L", **line}))
    for returns, types in variants:
        yield "@overload" * (len(variants) > 1)
        yield f"def {name}({', '.join(parameters(signature, types))}) -> {returns}: ..."


def keeps_labels(name: str, kind: str) -> bool:
    """Return whether a function returns an array with labels for one with labels."""
    named = labelled._ALIKE | labelled._ALONG | {"transpose"}
    return kind in ("reduction", "scan") or name in named


def parameters(signature: inspect.Signature, types: dict[str, str]) -> Iterator[str]:
    """Yield the parameters of a definition; `types` replaces annotations, and requires values."""
    listed = signature.parameters.values()
    kinds = [p.kind for p in listed]
    for i, p in enumerate(listed):
        if p.kind is p.KEYWORD_ONLY and {p.KEYWORD_ONLY, p.VAR_POSITIONAL}.isdisjoint(kinds[:i]):
            yield "*"
        annotation = types.get(p.name, p.annotation)
        required = p.default is p.empty or (p.name in types and not fits(p.default, annotation))
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        yield f"{stars}{p.name}: {annotation}" + ("" if required else f" = {default(p.default)}")
        if p.kind is p.POSITIONAL_ONLY and p.POSITIONAL_ONLY not in kinds[i + 1 :]:
            yield "/"


def fits(value: Any, annotation: str) -> bool:
    """Return whether a default is of the type that an overload requires."""
    return annotation in (type(value).__name__, "Engine") or (
        annotation == "None" and value is None
    )


def default(value: Any) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if plain else "..."


def names_of(function: Any) -> Iterator[tuple[str, str]]:
    """Yield the names in the annotations of a function that HEAD lacks, and their modules."""
    signature = inspect.signature(function)
    annotations = [str(p.annotation) for p in signature.parameters.values()]
    for annotation in (*annotations, str(signature.return_annotation)):
        for node in ast.walk(ast.parse(annotation, mode="eval")):
            if isinstance(node, ast.Name) and node.id not in KNOWN | {"monoids"}:
                yield node.id, home_of(node.id, function)


def home_of(name: str, function: Any) -> str:
    """Return the module that defines a name in the annotations of a function."""
    modules = [sys.modules[f.__module__] for f in (function, *public._bodies.values())]
    homes = [module for module in modules if hasattr(module, name)]
    value = getattr(homes[0], name)
    if inspect.isclass(value):
        return str(value.__module__)
    defined = [m for m in sys.modules.values() if isinstance(m, ModuleType) and defines(m, name)]
    return min(module.__name__ for module in defined)


def defines(module: ModuleType, name: str) -> bool:
    """Return whether a module of the package assigns a name."""
    if not module.__name__.startswith("dask_coop.") or name not in vars(module):
        return False
    tree = ast.parse(inspect.getsource(module))
    return any(
        isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)
        for node in tree.body
    )


if __name__ == "__main__":
    if "--write" in sys.argv:
        STUB.write_text(page())
    else:
        print(page())

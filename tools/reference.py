"""Writes docs/reference.md: every public name, its signature, and what it does in a line.

``python tools/reference.py --write`` writes it anew; a test holds the page to the package, so that
no public name or parameter changes unseen.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import dask_coop

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"

#: The headings of the page, and the modules whose public names stand there.
SECTIONS = {
    "Reductions": "sums moments extrema norm",
    "Scans": "cumulative",
    "Histograms": "histogram histogramdd bincount hist",
    "Order and selection": "order topk selection unique",
    "Groups": "grouped group_scans",
    "Windows and gaps": "windows fills",
    "Matrices": "linalg",
    "Operations of one's own": "monoid",
    "GPUs, files and clusters": "transfer files node plugin",
    "In the place of Dask's functions": "install report explain",
    "Errors and warnings": "errors",
}

HEAD = """# Reference

Every public name of `dask_coop`, with its parameters; `help(dask_coop.cumsum)` shows shapes,
dtypes, errors and examples. Methods along named dimensions are in [With xarray](xarray.md).
"""


def signature(name: str, function: Any) -> str:
    """Return a call as it is written, without types."""
    try:
        found = inspect.signature(function)
    except ValueError:
        return name
    if inspect.isclass(function) and issubclass(function, BaseException):
        return name
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    shown = inspect.Signature(plain)
    return f"{name}{shown}"


def sections() -> dict[str, list[str]]:
    """Return the public names by their headings.

    Raises
    ------
    LookupError
        If the module of a public name has no section.
    """
    modules = {m: heading for heading, some in SECTIONS.items() for m in some.split()}
    found: dict[str, list[str]] = {heading: [] for heading in SECTIONS}
    for name in dask_coop.__all__:
        module = getattr(dask_coop, name).__module__.rpartition(".")[2]
        if module not in modules:
            raise LookupError(f"the public name {name} of the module {module} has no section")
        found[modules[module]].append(name)
    return found


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for heading, names in sections().items():
        parts.append(f"\n## {heading}\n\n")
        for name in names:
            value = getattr(dask_coop, name)
            text = inspect.cleandoc(value.__doc__).split("\n\n")[0]
            short = " ".join(text.split()).replace(":func:", "").replace("``", "`")
            parts.append(f"- `{signature(name, value)}`  \n  {short}\n")
    return "".join(parts)


def write_api(folder: Path) -> None:
    """Write the pages that autosummary makes the site's reference of."""
    from dask_coop.xarray import CoopDataArray

    methods = sorted(name for name in vars(CoopDataArray) if name[0] != "_")
    labelled = {"Methods": [f"CoopDataArray.{name}" for name in methods]}
    folder.mkdir(exist_ok=True)
    for name, text in {
        "index": _tables("API reference", NAMES, "dask_coop", sections()),
        "xarray": _tables("Along named dimensions", METHODS, "dask_coop.xarray", labelled),
    }.items():
        path = folder / f"{name}.rst"
        # What has not changed need not be read anew.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


#: What stands above all public names, and above the methods of arrays with labels.
NAMES = """Every public name of ``dask_coop``. Methods of xarray's arrays are on another page:

.. toctree::
   :maxdepth: 1

   xarray
"""
METHODS = """``import dask_coop.xarray`` gives these to xarray's arrays, as ``x.coop.mean("time")``,
and to Datasets, for each of their variables. :doc:`/xarray` shows them at work.
"""


def _tables(title: str, opening: str, module: str, parts: dict[str, list[str]]) -> str:
    lines = [title, "=" * len(title), "", opening, f".. currentmodule:: {module}", ""]
    for heading, names in parts.items():
        lines += [f"{heading}\n{'-' * len(heading)}", "", ".. autosummary::"]
        lines += ["   :toctree: generated", "   :nosignatures:", ""]
        lines += [*(f"   {name}" for name in names), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    PAGE.write_text(page())

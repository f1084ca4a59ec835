"""Write docs/reference.md: every public name and method, with its signature and summary.

``python tools/reference.py --write`` writes it anew. A test checks the page against the package, so
that changes of public names and parameters are seen.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import dask_coop

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"

#: The headings of the page, and the folders or modules whose public names stand there.
SECTIONS = {
    "Reductions": "sums moments paired extrema norm clipping",
    "Scans": "cumulative",
    "Histograms": "histograms",
    "Order and selection": "order topk selection unique ranks",
    "Groups": "groups",
    "Windows and gaps": "windows fills signals",
    "Runs": "runs",
    "Pictures": "pictures",
    "Matrices": "linalg",
    "Custom operations": "monoids",
    "GPUs, files and clusters": "transfer files node cluster",
    "In place of Dask's functions": "install report explain",
    "Results": "results",
    "Errors and warnings": "errors",
}

HEAD = """# Reference

Every public name of `dask_coop`, with its parameters; `help(dask_coop.cumsum)` shows shapes,
dtypes, errors and examples. Methods along named dimensions are in [With xarray](xarray.md).
"""


def signature(name: str, function: Any) -> str:
    """Return the signature of a call, without types."""
    try:
        found = inspect.signature(function)
    except ValueError:
        return name
    if inspect.isclass(function) and issubclass(function, BaseException):
        return name
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    # A function that is a default has its address in its repr.
    shown = re.sub(r"<function (\w+) at 0x\w+>", r"\1", str(inspect.Signature(plain)))
    return f"{name}{shown}"


def members(value: Any) -> list[str]:
    """Return lines on the methods and properties that a class defines itself."""
    lines = []
    if inspect.isclass(value):
        for name, member in vars(value).items():
            if name.startswith("_") or not (callable(member) or isinstance(member, property)):
                continue
            text = inspect.cleandoc(member.__doc__ or "").split("\n\n")[0]
            shown = signature(name, member) if callable(member) else name
            lines.append(f"  - `{shown.replace('(self, ', '(').replace('(self)', '()')}`  \n")
            lines.append(f"    {' '.join(text.split())}\n")
    return lines


def heading_of(name: str) -> str:
    """Return the heading for a public name.

    Raises
    ------
    LookupError
        If its module has no section.
    """
    headings = {m: heading for heading, some in SECTIONS.items() for m in some.split()}
    module = getattr(dask_coop, name).__module__
    for folder in reversed(module.split(".")):
        if folder in headings:
            return headings[folder]
    raise LookupError(f"the public name {name} of the module {module} has no section")


def page() -> str:
    """Return the text of the page."""
    lines: dict[str, list[str]] = {heading: [] for heading in SECTIONS}
    for name in dask_coop.__all__:
        value = getattr(dask_coop, name)
        text = inspect.cleandoc(value.__doc__).split("\n\n")[0]
        short = " ".join(text.split()).replace(":func:", "").replace("``", "`")
        section = lines[heading_of(name)]
        section.append(f"- `{signature(name, value)}`  \n  {short}\n")
        section += members(value)
    return HEAD + "".join(f"\n## {heading}\n\n{''.join(some)}" for heading, some in lines.items())


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    PAGE.write_text(page())

"""Files of the site besides its pages: the lists of all names, and llms.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import reference
from docutils import nodes

import dask_coop

#: The scripts of the gallery, from easy to hard; new ones come last.
_ORDER = (
    *(
        "sensors",
        "gaps",
        "climatology",
        "spells",
        "smooth",
        "equalize",
        "match",
        "events",
        "unchanged",
    ),
    *(
        "quantile_mapping",
        "zones",
        "galaxies",
        "sampling",
        "summed_area",
        "stream",
        "reproducible",
        "recurrence",
    ),
    *("shortest_paths", "cluster"),
)


class EasyFirst:
    """Sort the scripts of the gallery as in `_ORDER`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> tuple[int, str]:
        """Return the place of a script."""
        stem = Path(name).stem
        return _ORDER.index(stem) if stem in _ORDER else len(_ORDER), stem


def into_a_folder(gallery: dict[str, Any], script: dict[str, Any]) -> list[str]:
    """Return the arguments of a script of the gallery: the folder for its drawings."""
    return ["--out", "../build/gallery"]


def write_llms(app: Any, exception: Exception | None) -> None:
    """Write llms.txt into the folder of the site: every page, its title and its first sentence."""
    if exception is not None or app.builder.format != "html":
        return
    env = app.env
    lines = ["# dask_coop", "", f"> {_opening(env.get_doctree('index'))}", ""]
    for name in _in_order(env, "index"):
        if "/generated/" in name or (name.startswith("gallery/") and name != "gallery/index"):
            continue
        title = env.titles[name].astext()
        said = _opening(env.get_doctree(name))
        link = f"- [{title}]({app.builder.get_target_uri(name)})"
        lines.append(f"{link}: {said}" if said else link)
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def _in_order(env: Any, name: str) -> list[str]:
    """Return the pages below a page, in the order of the tables of contents."""
    pages = []
    for child in env.toctree_includes.get(name, []):
        pages += [child, *_in_order(env, child)]
    return pages


def _opening(page: nodes.document) -> str:
    """Return the first sentence of a page's text."""
    for text in page.findall(nodes.paragraph):
        is_text = isinstance(text.parent, nodes.section) and not [*text.findall(nodes.image)]
        if is_text:
            return " ".join(text.astext().split()).partition(". ")[0].rstrip(".:") + "."
    return ""


def write_api(folder: Path) -> None:
    """Write the pages from which autosummary makes the site's reference."""
    from dask_coop.xarray import CoopDataArray

    methods = sorted(name for name in vars(CoopDataArray) if name[0] != "_")
    labelled = {"Methods": [f"CoopDataArray.{name}" for name in methods]}
    folder.mkdir(exist_ok=True)
    for name, text in {
        "index": _tables("API reference", NAMES, "dask_coop", _sections()),
        "xarray": _tables("Along named dimensions", METHODS, "dask_coop.xarray", labelled),
    }.items():
        path = folder / f"{name}.rst"
        # Unchanged files need not be read anew.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


#: The texts above all public names, and above the methods of arrays with labels.
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


def _sections() -> dict[str, list[str]]:
    """Return the public names by the headings of docs/reference.md."""
    found: dict[str, list[str]] = {heading: [] for heading in reference.SECTIONS}
    for name in dask_coop.__all__:
        found[reference.heading_of(name)].append(name)
    return found

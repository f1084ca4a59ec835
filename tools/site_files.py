"""What the site has beside its pages: llms.txt, which lists them; and where the gallery writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes


def into_a_folder(gallery: dict[str, Any], script: dict[str, Any]) -> list[str]:
    """Return the arguments of a script of the gallery: where it leaves what it draws."""
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
    found = []
    for child in env.toctree_includes.get(name, []):
        found += [child, *_in_order(env, child)]
    return found


def _opening(page: nodes.document) -> str:
    """Return the first sentence of a page's text."""
    for text in page.findall(nodes.paragraph):
        is_text = isinstance(text.parent, nodes.section) and not [*text.findall(nodes.image)]
        if is_text:
            return " ".join(text.astext().split()).partition(". ")[0].rstrip(".:") + "."
    return ""

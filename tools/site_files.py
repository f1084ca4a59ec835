"""What the site has beside its pages: llms.txt, which lists them in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes


def write_llms(app: Any, exception: Exception | None) -> None:
    """Write llms.txt into the folder of the site: every page, its title and its first sentence."""
    if exception is not None or app.builder.format != "html":
        return
    env = app.env
    lines = ["# dask_coop", "", f"> {_opening(env.get_doctree('index'))}", ""]
    for name in _in_order(env, "index"):
        if "/generated/" in name or name.startswith("gallery/") and name != "gallery/index":
            continue
        title = env.titles[name].astext()
        lines.append(f"- [{title}]({app.builder.get_target_uri(name)}): {_opening(env.get_doctree(name))}")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def _in_order(env: Any, name: str) -> list[str]:
    """Return the pages below a page, in the order of the tables of contents."""
    found = []
    for child in env.toctree_includes.get(name, []):
        found += [child, *_in_order(env, child)]
    return found


def _opening(page: nodes.document) -> str:
    """Return the first sentence of a page's first paragraph."""
    first = next(iter(page.findall(nodes.paragraph)), None)
    text = " ".join(first.astext().split()) if first else ""
    return text.partition(". ")[0].rstrip(".") + "."

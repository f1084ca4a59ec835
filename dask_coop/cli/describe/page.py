"""Write the page of ``describe --html``: one file, with plots that react to the mouse.

::

    a summary --figures.py--> SVG, and the positions of its two plots
        |                         |
        +-- bins, in words --> JSON beside it --the script--> the bin under the mouse, in words

The page contains the script, loads no other file, and also works without the script.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from dask_coop.api.call import drawings
from dask_coop.api.call.drawings import readable
from dask_coop.cli.describe import figures
from dask_coop.cli.describe.summaries import Summary


class Section(NamedTuple):
    """The section of a source.

    Attributes
    ----------
    title : str
        The name of the source.
    lines : sequence of str
        The printed lines, ``key: value``, and notes.
    summary : Summary
        The content of the picture and the table.
    """

    title: str
    lines: Sequence[str]
    summary: Summary


def write(path: Path, sections: Sequence[Section]) -> None:
    """Write a page with a section for each source.

    Parameters
    ----------
    path : pathlib.Path
        The file to write.
    sections : sequence of Section
        The sections, from top to bottom.
    """
    title = escape(", ".join(section.title for section in sections))
    links = "".join(
        f'<li><a href="#source-{i}">{escape(section.title)}</a></li>'
        for i, section in enumerate(sections)
    )
    contents = f"<nav><ul>{links}</ul></nav>" if len(sections) > 1 else ""
    body = "".join(_section(i, section) for i, section in enumerate(sections))
    path.write_text(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n"
        f"<body>{contents}\n{body}<script>{_SCRIPT}</script></body></html>\n",
        encoding="utf-8",
    )


def _section(number: int, section: Section) -> str:
    summary = section.summary
    rows = [(name, readable(value)) for name, value in summary.rows().items()]
    drawn = figures.draw_svg(summary, str(number))
    bars = {"left": drawn.edges, "frames": drawn.frames, "bins": _bins(summary)}
    # Only "</" could end a script element.
    facts = json.dumps(bars).replace("</", "<\\/")
    lines = "".join(f"<li>{escape(line)}</li>" for line in section.lines)
    return (
        f'<section id="source-{number}"><h1>{escape(section.title)}</h1>'
        f'<ul class="facts">{lines}</ul>'
        f'<div class="beside">{drawings.table([("statistic", "value"), *rows])}'
        f"<figure>{drawn.svg}<figcaption>Point at the plot to read it.</figcaption>"
        f'<script type="application/json">{facts}</script></figure></div></section>\n'
    )


def _bins(summary: Summary) -> list[str]:
    """Return the caption of each bar."""
    counts, edges = summary.bars()
    if summary.single and len(counts) == len(summary.counts):
        where = [readable(value) for value in summary.values(summary.steps())]
    else:
        ends = [readable(value) for value in summary.values(edges)]
        where = [f"{low} to {high}" for low, high in pairwise(ends)]
    fractions = counts / summary.statistics["count"]
    up_to = (summary.below + counts.cumsum()) / summary.statistics["count"]
    return [
        f"{place}: {count:,} values ({fraction:.2%}); {below:.2%} up to here"
        for place, count, fraction, below in zip(where, counts, fractions, up_to, strict=True)
    ]


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 76em; margin: 2em auto;
       padding: 0 1em; }
h1 { font-size: 1.5em; margin: 1.5em 0 0.3em; overflow-wrap: anywhere; }
.facts { list-style: none; padding: 0; color: #555; overflow-wrap: anywhere; }
.beside { display: flex; flex-wrap: wrap; gap: 2em; align-items: flex-start; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 0.15em 1em 0.15em 0; border-bottom: 1px solid #ddd; }
td { font-variant-numeric: tabular-nums; }
figure { margin: 0; flex: 1 1 30em; }
figure svg { width: 100%; height: auto; cursor: crosshair; }
figcaption { min-height: 3em; color: #c8553d; }
"""

_SCRIPT = """
for (const figure of document.querySelectorAll("figure")) {
  const svg = figure.querySelector("svg"), words = figure.querySelector("figcaption");
  const {left, frames, bins} = JSON.parse(figure.querySelector("script").textContent);
  const line = frames.map(([top, bottom]) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", "path");
    one.setAttribute("stroke", "#c8553d");
    one.setAttribute("pointer-events", "none");
    return svg.appendChild(one);
  });
  const idle = words.textContent;
  svg.addEventListener("mousemove", event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(
      svg.getScreenCTM().inverse()).x;
    const bin = left.findIndex((x, i) => x <= at && at < left[i + 1]);
    if (bin < 0) return;
    words.textContent = bins[bin];
    frames.forEach(([top, bottom], i) =>
      line[i].setAttribute("d", `M${at} ${top}V${bottom}`));
  });
  svg.addEventListener("mouseleave", () => {
    words.textContent = idle;
    line.forEach(one => one.setAttribute("d", ""));
  });
}
"""

"""The page that ``describe --html`` writes: one file, whole, which no name of a source breaks."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_coop.cli import main

pytest.importorskip("matplotlib")

#: Elements of HTML that have no end.
VOID = {"meta", "br", "img", "link", "input", "hr"}
RNG = np.random.default_rng(0)


class Page(HTMLParser):
    """What is on a page, and a check that all of its elements end in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: dict[str, list[str]] = {}
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)
            self.words.setdefault(tag, []).append("")
        for name, value in attrs:
            if name in ("src", "href", "xlink:href"):
                assert value.startswith("#")
                self.links.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.words[tag][-1] += data

    def plots(self) -> list[Any]:
        """Return what the script of the page knows of each plot."""
        # The last is the script itself.
        return [json.loads(text) for text in self.words["script"][:-1]]


def describe(folder: Path, *arguments: Any) -> Page:
    page = folder / "new" / "page.html"
    words = ["describe", "--cpu", *arguments, "--html", page, "--out", folder]
    assert main.main([*map(str, words)]) == 0
    return Page(page.read_text(encoding="utf-8"))


def test_the_page_has_all_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = RNG.normal(size=(200, 300))
    np.save(tmp_path / "normal.npy", x)
    page = describe(tmp_path, tmp_path / "normal.npy", "--bins", 50)
    printed = capsys.readouterr().out
    assert f"page: {tmp_path}/new/page.html" in printed
    (section,) = page.words["section"]
    for line in printed.splitlines():
        name, _, value = line.strip().partition("  ")
        if not line.startswith(("figure: ", "page: ")):
            assert (name + value.strip() if line.startswith("  ") else line) in section
    (plot,) = page.plots()
    assert len(plot["left"]) == 51
    assert np.all(np.diff(plot["left"]) > 0)
    counts, edges = np.histogram(x, 50)
    told = f"{edges[7]:.9g} to {edges[8]:.9g}: {counts[7]} values ({counts[7] / x.size:.2%}); "
    assert plot["bins"][7] == told + f"{counts[:8].sum() / x.size:.2%} up to here"
    assert "1 %: " in "".join(page.words["text"])


def test_bars_are_where_the_script_looks_for_them(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", RNG.normal(size=1000))
    page = describe(tmp_path, tmp_path / "x.npy", "--bins", 3)
    (plot,) = page.plots()
    text = (tmp_path / "new" / "page.html").read_text()
    # Of the outline of the bars matplotlib has written a line for each edge.
    (outline,) = [d for d in text.split(' d="')[1:] if d.startswith("M") and d.count("L") >= 6][:1]
    points = [
        part.split() for part in outline.partition('"')[0].replace("z", "").split("\n") if part
    ]
    found = sorted({round(float(point[1]), 1) for point in points})
    assert found == [round(x, 1) for x in plot["left"]]
    (above, below) = plot["frames"]
    heights = [float(point[2]) for point in points]
    assert above[0] < min(heights) < max(heights) <= above[1] + 0.01 < below[0] < below[1]


def test_nothing_is_loaded_and_nothing_breaks_out(tmp_path: Path) -> None:
    folder = tmp_path / "<b>&amp;"
    folder.mkdir()
    name = "</script><script>alert(1)<!--.npy"
    # A name with a slash is no file's.
    path = folder / name.replace("/", "_")
    np.save(path, RNG.normal(size=100))
    page = describe(tmp_path, path, path)
    assert page.links[:2] == ["#source-0", "#source-1"]
    assert all(link[1:] in page.ids for link in page.links)
    assert len(page.ids) == len({*page.ids})
    assert page.words["h1"] == [path.name] * 2
    assert len(page.words["script"]) == 3
    assert "alert" not in "".join(page.words["script"])
    assert "b" not in page.words
    assert f"source: {path}" in page.words["li"]


def test_the_page_tells_dates_and_merged_bins(tmp_path: Path) -> None:
    days = np.datetime64("2001-02-03") + RNG.integers(0, 3000, 5000)
    np.save(tmp_path / "days.npy", days)
    page = describe(tmp_path, tmp_path / "days.npy", "--bins", 4000, "--quiet")
    (plot,) = page.plots()
    # Three of them are a bar.
    assert len(plot["bins"]) == len(plot["left"]) - 1 == 1000
    assert plot["bins"][0].startswith("2001-02-03 to 2001-02-06: ")
    assert plot["bins"][-1].endswith("; 100.00% up to here")


def test_a_bar_of_one_number_is_told_by_it(tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.array([3, 3, 5], "u1"))
    (plot,) = describe(tmp_path, tmp_path / "few.npy", "--quiet").plots()
    assert plot["bins"] == [
        "3: 2 values (66.67%); 66.67% up to here",
        "4: 0 values (0.00%); 66.67% up to here",
        "5: 1 values (33.33%); 100.00% up to here",
    ]


def test_the_same_page_is_written_on_every_run(tmp_path: Path) -> None:
    from dask_coop.cli.describe import figures
    from dask_coop.cli.describe.summaries import Summary

    statistics = {"count": 6, "nans": 0, "min": 0.0, "max": 2.0, "mean": 1.0, "std": 1.0}
    counts, edges = np.array([2, 4]), np.array([0.0, 1, 2])
    summary = Summary(statistics, {"median": 1.0}, counts, edges, 0, False, 1, 48)
    assert figures.draw_svg(summary, "a") == figures.draw_svg(summary, "a")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda page: page.mkdir(), "it is a folder; name a file, such as"),
        (lambda page: None, "it is one of the sources; name another file"),
        (lambda page: page.parent.joinpath("a").touch(), "is not a folder; name another"),
    ],
)
def test_pages_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, said: str
) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    make(tmp_path / "page")
    name = {"it is a": "page", "it is o": "x.npy", "is not ": "a/page"}[said[:7]]
    words = ["describe", tmp_path / "x.npy", "--html", tmp_path / name, "--out", tmp_path / "out"]
    assert main.main([*map(str, words)]) == 2
    error = capsys.readouterr().err
    assert f"--html {tmp_path / name}: " in error
    assert said in error
    assert not (tmp_path / "out").exists()

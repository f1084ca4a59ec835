"""The documentation as a site: it is built without a warning, and its links lead somewhere."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from support import browser
from support.compiled import THOROUGH
from support.processes import printed
from test_readme import REPOSITORY

import dask_coop

pytest.importorskip("sphinx")

# One worker builds it for all tests.
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built as `make docs` does, less the runs of the gallery."""
    pytest.importorskip("xarray")
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "-D", "plot_gallery=0"]
    printed("-m", "sphinx", *options, REPOSITORY / "docs", folder, timeout=600)
    return folder


class Page(HTMLParser):
    """The links of a page, and what they may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given.get("id") or "", given.get("name") or ""}
        link = given.get("href" if tag in ("a", "link") else "src")
        if link:
            self.links.append(link)


def broken(folder: Path) -> set[str]:
    """Return the links within a site that lead nowhere, with the page that they are on."""
    pages = {path: Page(path.read_text()) for path in folder.rglob("*.html")}
    found = set()
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target.exists()
            if there and parts.fragment and target in pages:
                there = unquote(parts.fragment) in pages[target].anchors
            if not there:
                found.add(f"{path.relative_to(folder)}: {link}")
    return found


def test_links_within_the_site_lead_somewhere(site: Path) -> None:
    # The search page's form and the theme's templates are no links of ours.
    assert not broken(site)


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium or Chrome")
def test_a_browser_shows_every_page(site: Path) -> None:
    """It has a title and its pictures, scripts run, and no window is too narrow for it.

    Of pages of functions every tenth is shown.
    """
    title = "document.querySelector('h1').innerText"
    missing = "[...document.images].filter(each => !each.naturalWidth).map(each => each.src)"
    root = "document.documentElement"

    async def look(page: Path, tab: browser.Tab) -> tuple[str, list[str], list[int]]:
        await tab.show(page.as_uri(), f"document.readyState == 'complete' && {title}")
        beyond = []
        for width in (420, 800, 1000, 1400):
            await tab.resize(width, 900)
            beyond.append(await tab.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))
        return await tab.evaluate(title), await tab.evaluate(missing), beyond

    async def look_at_all() -> dict[str, Any]:
        async with browser.tab() as tab:
            # That of the search has no title before something is looked for.
            pages = {*site.rglob("*.html")} - {site / "search.html"}
            # Pages of functions are alike.
            alike = sorted(page for page in pages if page.parent.name == "generated")
            pages -= {*alike} - {*alike[:: 1 if THOROUGH else 10]}
            found = {str(page.relative_to(site)): await look(page, tab) for page in sorted(pages)}
            assert tab.errors == []
            return found

    found = asyncio.run(look_at_all())
    assert len(found) > 60
    bad = {page: each for page, (*each,) in found.items() if each[1:] != [[], [0, 0, 0, 0]]}
    assert bad == {}


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#gone"></a>')
    (tmp_path / "b.html").write_text('<p id="there"><a href="c.html"></a><img src="d.png">')
    assert broken(tmp_path) == {"a.html: b.html#gone", "b.html: c.html", "b.html: d.png"}


def test_every_public_name_has_a_page(site: Path) -> None:
    accessors = pytest.importorskip("dask_coop.xarray")
    folder = site / "api" / "generated"
    for name in dask_coop.__all__:
        assert f'id="dask_coop.{name}"' in (folder / f"dask_coop.{name}.html").read_text()
    for name in vars(accessors.CoopDataArray):
        if name[0] != "_":
            assert (folder / f"dask_coop.xarray.CoopDataArray.{name}.html").exists()


def test_every_page_is_in_llms_txt(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    for page in (REPOSITORY / "docs").glob("*.md"):
        if page.name != "index.md":
            assert f"({page.stem}.html): " in text, page
    assert "(api/index.html): " in text


def test_every_picture_is_shown(site: Path) -> None:
    shown = "".join(path.read_text() for path in site.glob("*.html"))
    for picture in (REPOSITORY / "docs" / "pictures").iterdir():
        assert picture.name in shown

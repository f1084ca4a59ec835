"""Sphinx's configuration of the documentation, which `make docs` builds into build/docs."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tools")]

import site_files  # noqa: E402

import dask_coop  # noqa: E402

project = author = "dask_coop"
release = dask_coop.__version__
copyright = "the authors of dask_coop"

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_gallery.gen_gallery",
]
highlight_language = "none"

myst_heading_anchors = 4
autodoc_typehints = "none"
numpydoc_show_class_members = False
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"dask_coop {release}"
# GitHub's runners say whose pages these are; a build elsewhere has no links to a repository.
if hosted := os.environ.get("GITHUB_REPOSITORY"):
    html_theme_options = {
        "source_repository": f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{hosted}/",
        "source_branch": "main",
        "source_directory": "docs/",
    }
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

#: Whose names in docstrings are links to their documentation.
_OTHERS = {
    "cupy": "https://docs.cupy.dev/en/stable/",
    "dask": "https://docs.dask.org/en/stable/",
    "distributed": "https://distributed.dask.org/en/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "xarray": "https://docs.xarray.dev/en/stable/",
}


def _is_reached(address: str) -> bool:
    try:
        with urlopen(f"{address}objects.inv", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


# Without a network pages are the same, less these links. Sphinx would warn, which is an error.
with ThreadPoolExecutor() as pool:
    reached = dict(zip(_OTHERS, pool.map(_is_reached, _OTHERS.values()), strict=True))
intersphinx_mapping = {name: (_OTHERS[name], None) for name in _OTHERS if reached[name]}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "site_files.EasyFirst",
    "thumbnail_size": (840, 560),
    "reset_argv": "site_files.into_a_folder",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}

site_files.write_api(HERE / "api")


def setup(app: Any) -> None:
    """Have llms.txt written beside the pages."""
    app.connect("build-finished", site_files.write_llms)

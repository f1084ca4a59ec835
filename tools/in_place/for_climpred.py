"""Chunks along lead time for climpred's tests, which skip those whose files are not there."""

from xml.etree import ElementTree

import pytest
from cf_xarray import accessor
from climpred import classes, tutorial

load, make = tutorial.load_dataset, classes.PredictionEnsemble.__init__


def loaded(*arguments, **keywords):
    """Return a dataset, or skip a test whose file the network does not give."""
    try:
        return load(*arguments, **keywords)
    except OSError as error:
        pytest.skip(f"needs files of the network: {error}")


def no_table(source=None):
    """Leave out the standard names of variables, which the network has."""
    raise ElementTree.ParseError("names are left out")


def chunked(self, initialized):
    """Make an ensemble of up to three chunks along lead time."""
    if hasattr(initialized, "chunk") and "lead" in initialized.dims:
        initialized = initialized.chunk(lead=max(1, -(-initialized.sizes["lead"] // 3)))
    make(self, initialized)


accessor.parse_cf_standard_name_table = no_table
tutorial.load_dataset = loaded
classes.PredictionEnsemble.__init__ = chunked

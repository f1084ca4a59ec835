"""Measurements of ours in the place of dask-image's."""

from functools import partial

import dask_image.ndmeasure as theirs
from by_chunks import pytest_sessionfinish, refused, served  # noqa: F401

import dask_coop as dc


def call(name, before, *arguments, **keywords):
    """Call ours; what it takes for labels has another name."""
    if keywords.get("wrap_axes"):
        refused[f"{name}: axes are wrapped"] += 1
        return before(*arguments, **keywords)
    keywords.pop("wrap_axes", None)
    if "label_image" in keywords:
        keywords["labels"] = keywords.pop("label_image")
    result = getattr(dc.ndmeasure, name)(*arguments, **keywords)
    served[name] += 1
    return result


#: dask-image's boxes are a frame.
for name in {*dc.ndmeasure.__all__} - {"find_objects"}:
    setattr(theirs, name, partial(call, name, getattr(theirs, name)))

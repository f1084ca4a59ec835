"""Keywords that a public function does not have: what it has in their place."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

#: What NumPy, xarray and PyTorch call the axes that a function works along.
AXES = ("axis", "axes", "dim", "dims")


def check_keywords(name: str, parameters: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise TypeError if one of the keywords `given` is no parameter of the function `name`."""
    if given.keys() <= parameters.keys():
        return
    wrong = next(key for key in given if key not in parameters)
    meant = [key for key in parameters if wrong in AXES and key in AXES]
    if meant := meant or get_close_matches(wrong, parameters, n=1):
        instead = f"{meant[0]}=, not {wrong}="
    else:
        instead = ", ".join(parameters)
    said = f"{name}() got an unexpected keyword argument {wrong!r}"
    raise TypeError(f"{said}; {name} takes {instead}")

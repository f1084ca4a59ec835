"""Choose among the arrays of a file."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from dask_coop.errors import UserError


class Members(NamedTuple):
    """The arrays of a file.

    Attributes
    ----------
    names : list of str
    along : collection of str
        Those that are coordinates along an axis.
    open : callable
        Returns the array of a name, and its attributes.
    """

    names: list[str]
    along: Collection[str]
    open: Callable[[str], tuple[Any, dict[str, Any]]]


def choose(
    path: Path | str, names: list[str], dataset: str | None, along: Collection[str] = ()
) -> list[str]:
    """Return the names of the arrays to describe.

    These are `dataset`, or all arrays but the coordinates, or the coordinates of a file without
    other arrays.

    Raises
    ------
    UserError
        If there is no such dataset, or none at all.
    """
    if not names:
        raise UserError(f"{path}: there is no dataset in it")
    if dataset is None:
        return [name for name in names if name not in along] or names
    if dataset.strip("/") not in names:
        raise UserError(
            f"{path}: there is no dataset {dataset}; give --dataset NAME, one of "
            f"{', '.join(sorted(names))}"
        )
    return [dataset.strip("/")]

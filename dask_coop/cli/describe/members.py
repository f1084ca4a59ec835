"""Which array of a file of several is described."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from dask_coop.errors import UserError


def choose(
    path: Path | str, names: list[str], dataset: str | None, along: Collection[str] = ()
) -> str:
    """Return the dataset to read: the one asked for, or the only one but for those `along` axes.

    Raises
    ------
    UserError
        If there is no such dataset, or several.
    """
    if not names:
        raise UserError(f"{path}: there is no dataset in it")
    if dataset is None:
        for candidates in (names, [name for name in names if name not in along]):
            if len(candidates) == 1:
                return candidates[0]
        raise UserError(f"{path}: give --dataset NAME, one of {', '.join(sorted(names))}")
    if dataset.strip("/") not in names:
        raise UserError(
            f"{path}: there is no dataset {dataset}; give --dataset NAME, one of "
            f"{', '.join(sorted(names))}"
        )
    return dataset.strip("/")

"""Choose one array of a file that holds several."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from dask_coop.errors import UserError


def choose(
    path: Path | str, names: list[str], dataset: str | None, along: Collection[str] = ()
) -> str:
    """Return the name of `dataset`, or of the only array besides coordinates (`along`).

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

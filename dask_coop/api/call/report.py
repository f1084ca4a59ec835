"""Count calls by function and dtype: what served them, why, and how results may differ."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from dask_coop.api.call import drawings


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, of which the first is the head, with their cells below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


class Row(NamedTuple):
    """Calls of a function that were served alike.

    Attributes
    ----------
    function : str
        Its name.
    elements : str
        The dtype that it was called with; empty where that has none, such as a list.
    served_by : str
        "dask_coop" or "Dask".
    why : str
        Why it was left to Dask; otherwise how results may differ from what Dask's function would
        have returned, where `install` has put ours in its place, or empty.
    calls : int
        How many there were.
    """

    function: str
    elements: str
    served_by: str
    why: str
    calls: int


class Report(tuple[Row, ...]):
    """Calls by function, elements and what served them; it prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the table."""
        return as_table(self._table())

    def _repr_html_(self) -> str:
        return drawings.table(self._table())

    def _table(self) -> list[tuple[str, ...]]:
        head = ("function", "calls", "elements", "served by", "why")
        return [head, *((r.function, str(r.calls), r.elements, r.served_by, r.why) for r in self)]


#: With more kinds of calls than that reasons, which may tell shapes and values, are left out.
LIMIT = 1000
_ANY = "one of many reasons"

_calls: Counter[tuple[str, str, str, str]] = Counter()
_lock = threading.Lock()
#: In which threads a call is under way: what that calls is part of it.
_inside = threading.local()


def is_inside() -> bool:
    """Tell whether a call is under way in this thread."""
    return bool(getattr(_inside, "depth", 0))


def count(name: str, array: Any, served_by: str, why: str = "") -> None:
    """Count a call of the function `name`, unless it is part of another one."""
    if is_inside():
        return
    of = name, str(getattr(array, "dtype", "")), served_by
    key = (*of, why.partition("\n")[0])
    with _lock:
        if why and key not in _calls and len(_calls) >= LIMIT:
            key = (*of, _ANY)
        _calls[key] += 1


@contextmanager
def uncounted() -> Iterator[None]:
    """Have calls within be part of another one, which is counted."""
    _inside.depth = getattr(_inside, "depth", 0) + 1
    try:
        yield
    finally:
        _inside.depth -= 1


@contextmanager
def counted(name: str, array: Any) -> Iterator[None]:
    """Count what is done within as a call of the function `name`, if nothing is raised."""
    with uncounted():
        yield
    count(name, array, "dask_coop", getattr(_inside, "differences", ""))


@contextmanager
def differing(how: str) -> Iterator[None]:
    """Have calls within be counted with how their results may differ from those of the original."""
    before = getattr(_inside, "differences", "")
    _inside.differences = how
    try:
        yield
    finally:
        _inside.differences = before


def report() -> Report:
    """Tell which functions were called in this process, and what served them.

    Returns
    -------
    Report
        A tuple that prints as a table, with a row for each function, dtype and reason. A row has
        ``function``, ``elements`` (the dtype), ``served_by`` ("dask_coop" or "Dask"), ``why`` it
        was left to Dask, or how its result may differ from Dask's, and how many ``calls`` there
        were.

    See Also
    --------
    explain : What serves each operation of one lazy result.
    install : Has Dask's functions, and xarray's, be served by this library.

    Notes
    -----
    Counted are calls of this library's functions, and of Dask's, xarray's and flox's while it is
    installed in their places; not what these call in turn, nor what raises.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> with dc.installed():
    ...     total = da.arange(8, chunks=4).sum()
    >>> "dask_coop" in [row.served_by for row in dc.report() if row.function == "sum"]
    True
    """
    with _lock:
        rows = [Row(*key, calls) for key, calls in _calls.items()]
    return Report(sorted(rows))

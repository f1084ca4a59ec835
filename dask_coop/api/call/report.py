"""Count calls by function and dtype: which library served them, why, and how results may differ."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from dask_coop.api.call import drawings


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text with aligned columns; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


class Row(NamedTuple):
    """Calls of a function with one dtype, library and reason.

    Attributes
    ----------
    function : str
        The name of the function.
    elements : str
        The dtype of its first argument; empty for arguments without one, such as lists.
    served_by : str
        "dask_coop", "Dask", or "NumPy" for a call that computes its arrays in memory.
    why : str
        Why the call was left to Dask or NumPy. If `install` has replaced Dask's function: how the
        result may differ from Dask's. Else empty.
    calls : int
        The number of calls.
    """

    function: str
    elements: str
    served_by: str
    why: str
    calls: int


class Report(tuple[Row, ...]):
    """Calls by function, dtype and library; it prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the table."""
        return as_table(self._table())

    def _repr_html_(self) -> str:
        return drawings.table(self._table())

    def _table(self) -> list[tuple[str, ...]]:
        head = ("function", "calls", "elements", "served by", "why")
        return [head, *((r.function, str(r.calls), r.elements, r.served_by, r.why) for r in self)]


#: The most kinds of calls with reasons of their own, which may hold shapes and values.
LIMIT = 1000
_ANY = "one of many reasons"

_calls: Counter[tuple[str, str, str, str]] = Counter()
_lock = threading.Lock()
#: By thread, how many calls are under way; calls within these are not counted.
_inside = threading.local()


def is_inside() -> bool:
    """Tell whether a call is under way in this thread."""
    return bool(getattr(_inside, "depth", 0))


def count(name: str, array: Any, served_by: str, why: str = "") -> None:
    """Count a call of the function `name`, unless another call makes it."""
    if is_inside():
        return
    call = name, str(getattr(array, "dtype", "")), served_by
    key = (*call, why.partition("\n")[0])
    with _lock:
        if why and key not in _calls and len(_calls) >= LIMIT:
            key = (*call, _ANY)
        _calls[key] += 1


@contextmanager
def uncounted() -> Iterator[None]:
    """Do not count the calls within, because an outer call is counted."""
    _inside.depth = getattr(_inside, "depth", 0) + 1
    try:
        yield
    finally:
        _inside.depth -= 1


@contextmanager
def counted(name: str, array: Any) -> Iterator[None]:
    """Count the block as one call of the function `name`, unless it raises."""
    with uncounted():
        yield
    count(name, array, "dask_coop", getattr(_inside, "differences", ""))


@contextmanager
def differing(how: str) -> Iterator[None]:
    """Count the calls within with a note on `how` results may differ from the original's."""
    previous = getattr(_inside, "differences", "")
    _inside.differences = how
    try:
        yield
    finally:
        _inside.differences = previous


def report() -> Report:
    """Report which functions were called in this process and which library served them.

    Returns
    -------
    Report
        A tuple that prints as a table, with a row for each function, dtype and reason. A row has
        ``function``, ``elements`` (the dtype), ``served_by`` ("dask_coop", "Dask" or "NumPy"),
        ``why`` (the reason why the call was left to them, or how its result may differ from Dask's)
        and ``calls`` (their number).

    See Also
    --------
    explain : Which library serves each operation of a lazy result.
    install : Replace Dask's and xarray's functions by this library's.

    Notes
    -----
    The report counts calls of this library's functions and, while these are installed, of Dask's,
    xarray's, flox's and xhistogram's. It does not count calls within other calls, or those that
    raise.

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

"""Signatures and docstrings of methods, from those of the public functions that they call.

A function's parameters become a method's: the array is the one that the accessor is of, `axis` is
`dim`, what only Dask's signatures have is left out, and missing elements and attributes are told of
in xarray's words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: What the axis is called in signatures.
_AXES = ("axis", "axes")
#: Parameters that are there for the signatures of NumPy and Dask, unless they have to be given.
_OMITTED = ("out", "overwrite_input", "order")

#: Parameters that xarray's methods have.
_ANY = """dim : hashable, iterable of hashable, ... or None
    The dimensions to work over; None or ... for all of them."""
_ONE = """dim : hashable
    The dimension to work along."""
_EACH = """dim : hashable or iterable of hashable
    The dimensions to work along, one after another."""
_SKIPNA = """skipna : bool, optional
    Whether NaN is left out; by default it is in floats and complex numbers, as xarray's."""
_KEEP_ATTRS = """keep_attrs : bool, optional
    Whether attributes are kept; by default what xarray's option of that name says."""

_RETURNS = """
Returns
-------
DataArray
    With the name and the coordinates of the array, but for those along dimensions that are gone or
    are in another order; of a Dataset, a Dataset of these. Lazy where the data is Dask's, and else
    computed.

Raises
------
TypeError, ValueError
    As by :func:`dask_coop.{name}`, and if there is no such dimension.

See Also
--------
dask_coop.{name} : The same of arrays without labels.
"""


def signature_of(function: Callable[..., Any], positional: Sequence[str], skipna: bool) -> Any:
    """Return the signature of the method that calls a public function.

    Parameters
    ----------
    function : callable
    positional : sequence of str
        The parameters that may be given without their names, `dim` among them.
    skipna : bool
        Whether there is one that leaves NaN out, too.
    """
    given = dict(inspect.signature(function).parameters)
    given.pop(next(iter(given)))
    axis = next(given.pop(name) for name in _AXES if name in given)
    engine = [given.pop("engine")] if "engine" in given else []
    default = None if "keepdims" in given else inspect.Parameter.empty
    given["dim"] = axis.replace(name="dim", default=default, annotation=inspect.Parameter.empty)
    first = [given.pop(name).replace(kind=axis.POSITIONAL_OR_KEYWORD) for name in positional]
    rest = [one.replace(kind=axis.KEYWORD_ONLY) for one in given.values()]
    rest = [one for one in rest if one.name not in _OMITTED]
    added = [*(["skipna"] if skipna else []), "keep_attrs"]
    own = [inspect.Parameter(name, axis.KEYWORD_ONLY, default=None) for name in added]
    this = inspect.Parameter("self", axis.POSITIONAL_OR_KEYWORD)
    parameters = [one.replace(annotation=one.empty) for one in (*first, *rest, *own, *engine)]
    return inspect.Signature([this, *parameters])


def docstring_of(function: Callable[..., Any], signature: inspect.Signature) -> str:
    """Return the docstring of the method with that signature that calls a public function."""
    summary, _, rest = (inspect.getdoc(function) or "").partition("\n")
    array, *others = inspect.signature(function).parameters
    wanted = [name for name in signature.parameters if name != "self"]
    dim = _ANY if "keepdims" in others else _EACH if "axes" in others else _ONE
    entries = {"dim": dim, "skipna": _SKIPNA, "keep_attrs": _KEEP_ATTRS}
    for names, told in _entries(rest):
        kept = [name for name in names if name in wanted and name not in entries]
        if kept:
            _, colon, following = told.partition(
                " : " if " : " in told.partition("\n")[0] else "\n"
            )
            entries[kept[0]] = _in_dims(f"{', '.join(kept)}{colon}{following}", array)
    parameters = "\n".join(entries[name] for name in wanted if name in entries)
    ending = _RETURNS.format(name=function.__name__)
    return f"{_in_dims(summary, array)}\n\nParameters\n----------\n{parameters}\n{ending}"


def _entries(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the entries of the parameters of a docstring, with the names that each is of."""
    _, _, section = text.partition("Parameters\n----------\n")
    section = re.split(r"^\w[\w ]*\n-{3,}\n", section, maxsplit=1, flags=re.MULTILINE)[0]
    for entry in re.split(r"^(?=\S)", section, flags=re.MULTILINE):
        names = entry.partition("\n")[0].partition(" : ")[0]
        yield [name.strip() for name in names.split(",")], entry.rstrip()


def _in_dims(text: str, array: str) -> str:
    """Return what a function says of its array and of axes in words of arrays with dimensions."""
    for pattern, words in (
        (r":func:`(\w+)`", r":func:`dask_coop.\1`"),
        (rf"`{array}`", "the array"),
        (r"`ax[ei]s`", "`dim`"),
        (r"\b([Aa])n axis\b", r"\1 dimension"),
        (r"\baxis\b", "dimension"),
        (r"\baxes\b", "dimensions"),
        (r"dask\.array\.Array or array_like", "DataArray or array_like"),
        (r"dict of int to int", "dict of hashable to int"),
    ):
        text = re.sub(pattern, words, text)
    return text

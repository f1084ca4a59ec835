"""Derive signatures and docstrings of methods from those of the public functions that they call.

A function's parameters become a method's: the array is the accessor's, `axis` becomes `dim`,
parameters that only Dask's signatures need are left out, and xarray's `skipna` and `keep_attrs` are
added.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: Names of the axis parameter of functions.
_AXES = ("axis", "axes")
#: Parameters of functions only for the signatures of NumPy and Dask, unless they are positional.
_OMITTED = ("out", "overwrite_input", "order")

#: Parameters that xarray's methods have.
_ANY = """dim : hashable, iterable of hashable, ... or None
    The dimensions to work over; None or ... for all of them."""
_ONE = """dim : hashable
    The dimension to work along."""
_EACH = """dim : hashable or iterable of hashable
    The dimensions to work along, one after another."""
_SKIPNA = """skipna : bool, optional
    Whether to leave NaN out; by default for floats and complex numbers, as in xarray."""
_KEEP_ATTRS = """keep_attrs : bool, optional
    Whether to keep attributes; by default xarray's option of that name decides."""

_RETURNS = """
Returns
-------
DataArray
    With the name and the coordinates of the array, except coordinates along dimensions that are
    reduced or reordered; a named tuple of these where the function returns one; for a Dataset, a
    Dataset of these. Lazy if the data is Dask's, else computed.

Raises
------
TypeError, ValueError
    As for :func:`dask_coop.{name}`, and if there is no such dimension.

See Also
--------
dask_coop.{name} : The same for arrays without labels.
"""


def signature_of(function: Callable[..., Any], positional: Sequence[str], skipna: bool) -> Any:
    """Return the signature of the method that calls a public function.

    Parameters
    ----------
    function : callable
    positional : sequence of str
        The parameters that may be positional, `dim` among them.
    skipna : bool
        Whether the method has `skipna`; one of a function with `nan_policy` has it in any case.
    """
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop(next(iter(parameters)))
    skipna |= parameters.pop("nan_policy", None) is not None
    axis = next(parameters.pop(name) for name in _AXES if name in parameters)
    engine = [parameters.pop("engine")] if "engine" in parameters else []
    default = None if "keepdims" in parameters else inspect.Parameter.empty
    parameters["dim"] = axis.replace(
        name="dim", default=default, annotation=inspect.Parameter.empty
    )
    first = [parameters.pop(name).replace(kind=axis.POSITIONAL_OR_KEYWORD) for name in positional]
    others = [
        parameter.replace(kind=axis.KEYWORD_ONLY)
        for parameter in parameters.values()
        if parameter.name not in _OMITTED
    ]
    names = [*(["skipna"] if skipna else []), "keep_attrs"]
    added = [inspect.Parameter(name, axis.KEYWORD_ONLY, default=None) for name in names]
    this = inspect.Parameter("self", axis.POSITIONAL_OR_KEYWORD)
    bare = [p.replace(annotation=p.empty) for p in (*first, *others, *added, *engine)]
    return inspect.Signature([this, *bare])


def docstring_of(function: Callable[..., Any], signature: inspect.Signature) -> str:
    """Return the docstring of the method with `signature` that calls a public function."""
    summary, _, sections = (inspect.getdoc(function) or "").partition("\n")
    array, *others = inspect.signature(function).parameters
    wanted = [name for name in signature.parameters if name != "self"]
    dim = _ANY if "keepdims" in others else _EACH if "axes" in others else _ONE
    entries = {"dim": dim, "skipna": _SKIPNA, "keep_attrs": _KEEP_ATTRS}
    for names, entry in _entries(sections):
        left = [name for name in names if name in wanted and name not in entries]
        if left:
            _, colon, text = entry.partition(" : " if " : " in entry.partition("\n")[0] else "\n")
            entries[left[0]] = _in_dims(f"{', '.join(left)}{colon}{text}", array)
    parameters = "\n".join(entries[name] for name in wanted if name in entries)
    ending = _RETURNS.format(name=function.__name__)
    return f"{_in_dims(summary, array)}\n\nParameters\n----------\n{parameters}\n{ending}"


def _entries(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the parameter names and the text of each entry of a docstring's parameters."""
    _, _, section = text.partition("Parameters\n----------\n")
    section = re.split(r"^\w[\w ]*\n-{3,}\n", section, maxsplit=1, flags=re.MULTILINE)[0]
    for entry in re.split(r"^(?=\S)", section, flags=re.MULTILINE):
        names = entry.partition("\n")[0].partition(" : ")[0]
        yield [name.strip() for name in names.split(",")], entry.rstrip()


def _in_dims(text: str, array: str) -> str:
    """Return a text on arrays and axes in words of arrays with named dimensions."""
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

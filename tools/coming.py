"""Write the lists of docs/coming.md, which match functions of other libraries with ours.

``python tools/coming.py --write`` writes them anew; a test checks the page against the package.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import dask_coop
from dask_coop.api import flox_calls
from dask_coop.api.call.fallback import dasks
from dask_coop.api.install import of_dask as installed_dask

PAGE = Path(__file__).parents[1] / "docs" / "coming.md"

#: Differences from Dask's function of the same name, besides further parameters.
DIFFERENCES = {
    "bincount": "of any number of dimensions",
    "histogram": "bins and range may be found in the same graph",
    "matmul": "not served by `install`",
    "median": "also over all axes",
    "nanmedian": "also over all axes; float32 stays float32",
    "nanpercentile": "also over all axes",
    "nanquantile": "also over all axes",
    "norm": "orders that need singular values are left to Dask",
    "percentile": "exact, of any number of dimensions",
    "push": "the axis comes before the limit",
    "quantile": "also over all axes",
    "topk": "ties by the smallest index for any chunking",
    "argtopk": "ties by the smallest index for any chunking",
    "select": "of lists; `dc.select(x, mask)` is `x[mask]`; not served by `install`",
    "transpose": "not served by `install`",
}

#: Functions with another name here, by their names in Dask.
CALLED = {"push": "ffill"}

#: Parameters that say how a call runs, of every function or of many.
HOW = ("engine", "split_every", "recompute", "out")

#: Our public functions that `install` leaves to Dask's function of the same name.
NOT_INSTALLED = ("matmul", "select", "transpose")

#: Functions that CuPy 14 does not have under that name.
NOT_IN_CUPY = """approx_nunique argtopk bfill binned_statistic binned_statistic_2d
binned_statistic_dd box_filter coarsen combine count_in_runs count_runs crosstab cummax cummin
cumulative_trapezoid describe ewm_corr ewm_cov ewm_mean ewm_std ewm_sum ewm_var explain ffill
first_run from_npy from_zarr groupby_reduce groupby_scan install installed integral_image label
last_run lfilter logcumsumexp longest_run mad_std median_abs_deviation moment move_argmax
move_argmin move_corr move_cov move_max move_mean move_median move_min move_quantile move_rank
move_std move_sum move_var nanpercentile nanquantile norm pyramid reduce report run_events
run_lengths scan sigma_clip sosfilt to_gpu to_hist to_host to_zarr topk uninstall value_counts"""

#: Functions that cuPyNumeric 26.05 has and CuPy lacks, and the other way round.
ONLY_IN_CUPYNUMERIC = "nanpercentile nanquantile"
ONLY_IN_CUPY = "cumulative_prod cumulative_sum nanstd nanvar ptp std"


def functions() -> list[str]:
    """Return the names of public functions."""
    return [name for name in dask_coop.__all__ if name[0].islower()]


def in_cupy() -> set[str]:
    """Return the names of public functions that CuPy has, too."""
    return {*functions()} - {*NOT_IN_CUPY.split()}


def of_dask() -> str:
    """Return a table of Dask's functions."""
    rows = {row.name: row.module for row in installed_dask.rows()}
    rows |= dict.fromkeys(NOT_INSTALLED, "dask.array")
    lines = ["| `dask.array` | here | extra arguments | differences |", "|---|---|---|---|"]
    for name in sorted(rows):
        theirs = dasks(getattr(import_module(rows[name]), name))
        ours = getattr(dask_coop, CALLED.get(name, name))
        more = [n for n in optional(ours) if n not in {*parameters(theirs), *HOW}]
        more = [f"`{n}=`" for n in more] if name not in CALLED else []
        shown = f"{rows[name]}.{name}".replace("dask.array", "da")
        cells = [f"`{shown}`", f"`dc.{ours.__name__}`", ", ".join(more), DIFFERENCES.get(name, "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters that callers may pass by name."""
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.kind not in (p.POSITIONAL_ONLY, p.VAR_KEYWORD)]


def optional(function: Any) -> list[str]:
    """Return the names of a function's optional parameters."""
    defaults = inspect.signature(function).parameters
    return [
        name
        for name in parameters(function)
        if defaults[name].default is not inspect.Parameter.empty
    ]


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) + "."


def of_xarray() -> str:
    """Return the methods of xarray's arrays that the accessor has under the same names."""
    import xarray as xr

    from dask_coop.xarray import CoopDataArray

    methods = {name for name in vars(CoopDataArray) if name[0] != "_"}
    return listed(name for name in methods if hasattr(xr.DataArray, name))


PARTS = {
    "dask": of_dask,
    "cupy": lambda: listed(in_cupy()),
    "cupynumeric": lambda: listed(
        in_cupy() - {*ONLY_IN_CUPY.split()} | {*ONLY_IN_CUPYNUMERIC.split()}
    ),
    "xarray": of_xarray,
    "flox": lambda: listed({*flox_calls._REDUCTIONS, *flox_calls._SCANS}),
}


def page() -> str:
    """Return the page with new lists; the text around them stays."""
    text = PAGE.read_text()
    for name, make in PARTS.items():
        before, rest = text.split(f"<!-- {name} -->")
        text = f"{before}<!-- {name} -->\n\n{make()}\n\n<!-- end of {name} -->"
        text += rest.split(f"<!-- end of {name} -->")[1]
    return text


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    PAGE.write_text(page())

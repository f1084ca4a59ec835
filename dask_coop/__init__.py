"""Histograms, reductions, scans and products of Dask arrays on many GPUs."""

from typing import TYPE_CHECKING, Any

from dask_coop.counts import bincount, digitize
from dask_coop.custom import Monoid, reduce
from dask_coop.errors import (
    CooperativeTimeout,
    Declined,
    FallbackWarning,
    Refused,
    RefusedByDask,
)
from dask_coop.explanations import explain
from dask_coop.histograms import histogram
from dask_coop.joint import histogram2d, histogramdd
from dask_coop.linear import matmul, transpose
from dask_coop.node import Node
from dask_coop.reductions import (
    Description,
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    describe,
    max,
    mean,
    min,
    moment,
    nanargmax,
    nanargmin,
    nanmax,
    nanmean,
    nanmin,
    nanprod,
    nanstd,
    nansum,
    nanvar,
    norm,
    prod,
    ptp,
    std,
    sum,
    var,
)
from dask_coop.running import cummax, cummin, logcumsumexp, scan
from dask_coop.scans import (
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    nancumprod,
    nancumsum,
)

if TYPE_CHECKING:
    from dask_coop.plugin import CoopPlugin

__version__ = "0.1.0"

__all__ = [
    "CoopPlugin",
    "CooperativeTimeout",
    "Declined",
    "Description",
    "FallbackWarning",
    "Monoid",
    "Node",
    "Refused",
    "RefusedByDask",
    "all",
    "any",
    "argmax",
    "argmin",
    "bincount",
    "count_nonzero",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "describe",
    "digitize",
    "explain",
    "histogram",
    "histogram2d",
    "histogramdd",
    "logcumsumexp",
    "matmul",
    "max",
    "mean",
    "min",
    "moment",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "norm",
    "prod",
    "ptp",
    "reduce",
    "scan",
    "std",
    "sum",
    "transpose",
    "var",
]


def __getattr__(name: str) -> Any:
    # Only clusters need the plugin, so only they pay for importing distributed.
    if name == "CoopPlugin":
        from dask_coop.plugin import CoopPlugin

        return CoopPlugin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def dask_setup(node: Any) -> None:
    """Warm a worker that was started with ``--preload dask_coop``."""
    from distributed import Worker

    from dask_coop.plugin import CoopPlugin

    if isinstance(node, Worker):
        CoopPlugin().setup(node)

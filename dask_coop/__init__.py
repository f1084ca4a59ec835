"""Statistics, running sums, histograms, groups and windows of Dask arrays, on CPUs and GPUs.

>>> import dask.array as da
>>> import dask_coop as dc
>>> x = da.ones((1000, 1000), chunks=(100, 1000))
>>> mean, median = dc.mean(x), dc.median(x)
>>> counts, edges = dc.histogram(x, bins=10)

Functions have the names and parameters of their counterparts in `dask.array` and NumPy, and return
lazy arrays. Chunks are NumPy's, for which Numba compiles fast loops if it is installed, or CuPy's,
which `to_gpu` makes. ``help(dask_coop.mean)`` describes a function.

Reductions
    sum, prod, mean, var, std, min, max, argmin, argmax, ptp, any, all, count_nonzero, norm, moment,
    nansum, nanprod, nanmean, nanvar, nanstd, nanmin, nanmax, nanargmin, nanargmax, average, skew,
    kurtosis, cov, corrcoef, linregress, which returns a LinregressResult, polyfit,
    median_abs_deviation, mad_std, sigma_clip,
    describe: eight of them in one read, a Description; of a frame, Descriptions
Running sums and other scans
    cumsum, cumprod, nancumsum, nancumprod, cumulative_sum, cumulative_prod, cummax, cummin,
    logcumsumexp
Histograms
    histogram, histogram2d, histogramdd, bincount, digitize, to_hist;
    Histogram and Histogram2D, which the first three return
Order and selection
    quantile, percentile, median, nanquantile, nanpercentile, nanmedian, sort, argsort, lexsort,
    topk, argtopk, select, compress, extract, nonzero, flatnonzero, argwhere, unique, value_counts,
    isin, searchsorted, rankdata, percentileofscore, nunique,
    approx_nunique,
    mode, which returns a ModeResult, crosstab, which returns a CrosstabResult;
    with an error, quantiles are a QuantileEstimate
Groups
    groupby_reduce, groupby_scan, binned_statistic, binned_statistic_2d, binned_statistic_dd
Windows and gaps
    move_sum, move_mean, move_std, move_var, move_min, move_max, move_median, move_quantile,
    move_rank, move_argmin, move_argmax, move_cov, move_corr, box_filter, integral_image, coarsen,
    pyramid, ffill, bfill, ewm_mean, ewm_sum, ewm_var, ewm_std, ewm_cov, ewm_corr,
    cumulative_trapezoid, lfilter, sosfilt
Runs of a mask
    longest_run, count_runs, count_in_runs, first_run, last_run, run_lengths,
    run_events, which returns RunEvents
Pictures
    label; ndmeasure: measurements of regions, by SciPy's names
Matrices
    transpose, matmul
Operations of one's own
    Monoid, reduce, scan; combine: one ReductionState of several
GPUs, files and clusters
    to_gpu, to_host, from_npy, from_zarr, to_zarr, Node, CoopPlugin
In place of Dask's functions
    install, uninstall, installed, report, explain
Errors and warnings
    Refused, RefusedByDask, Declined, CooperativeTimeout, FallbackWarning

Methods along the named dimensions of xarray's objects come with ``import dask_coop.xarray``.
"""

import sys
from typing import TYPE_CHECKING, Any

from dask_coop.algebra import monoids
from dask_coop.api.call.names import no_attribute
from dask_coop.api.call.report import report
from dask_coop.api.call.results import (
    CrosstabResult,
    Description,
    Descriptions,
    Histogram,
    Histogram2D,
    LinregressResult,
    ModeResult,
    QuantileEstimate,
    RunEvents,
)
from dask_coop.api.cumulative import (
    cummax,
    cummin,
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    logcumsumexp,
    nancumprod,
    nancumsum,
)
from dask_coop.api.explain import explain
from dask_coop.api.extrema import (
    argmax,
    argmin,
    max,
    min,
    nanargmax,
    nanargmin,
    nanmax,
    nanmin,
    ptp,
)
from dask_coop.api.files import from_zarr, to_zarr
from dask_coop.api.fills import (
    bfill,
    cumulative_trapezoid,
    ewm_corr,
    ewm_cov,
    ewm_mean,
    ewm_std,
    ewm_sum,
    ewm_var,
    ffill,
)
from dask_coop.api.groups.binned import (
    binned_statistic,
    binned_statistic_2d,
    binned_statistic_dd,
)
from dask_coop.api.groups.reduce import groupby_reduce
from dask_coop.api.groups.scan import groupby_scan
from dask_coop.api.histograms.bincount import bincount, digitize
from dask_coop.api.histograms.histogram import histogram
from dask_coop.api.histograms.histogramdd import histogram2d, histogramdd
from dask_coop.api.histograms.to_hist import to_hist
from dask_coop.api.install.install import install, install_if_wanted, installed, uninstall
from dask_coop.api.linalg import matmul, transpose
from dask_coop.api.moments import (
    describe,
    kurtosis,
    mean,
    moment,
    nanmean,
    nanstd,
    nanvar,
    skew,
    std,
    var,
)
from dask_coop.api.monoids.monoid import Monoid, reduce, scan
from dask_coop.api.monoids.states import ReductionState, combine
from dask_coop.api.norm import norm
from dask_coop.api.order import (
    median,
    nanmedian,
    nanpercentile,
    nanquantile,
    percentile,
    quantile,
)
from dask_coop.api.paired.average import average
from dask_coop.api.paired.covariance import corrcoef, cov
from dask_coop.api.paired.polyfit import polyfit
from dask_coop.api.paired.regression import linregress
from dask_coop.api.pictures import ndmeasure
from dask_coop.api.pictures.clipping import mad_std, median_abs_deviation, sigma_clip
from dask_coop.api.pictures.label import label
from dask_coop.api.ranks import (
    approx_nunique,
    lexsort,
    mode,
    nunique,
    percentileofscore,
    rankdata,
)
from dask_coop.api.runs import (
    count_in_runs,
    count_runs,
    first_run,
    last_run,
    longest_run,
    run_events,
    run_lengths,
)
from dask_coop.api.selection import (
    argwhere,
    compress,
    extract,
    flatnonzero,
    nonzero,
    select,
)
from dask_coop.api.signals.filters import lfilter, sosfilt
from dask_coop.api.sums import all, any, count_nonzero, nanprod, nansum, prod, sum
from dask_coop.api.topk import argsort, argtopk, sort, topk
from dask_coop.api.transfer import from_npy, to_gpu, to_host
from dask_coop.api.unique import crosstab, isin, searchsorted, unique, value_counts
from dask_coop.api.windows import (
    box_filter,
    coarsen,
    integral_image,
    move_argmax,
    move_argmin,
    move_corr,
    move_cov,
    move_max,
    move_mean,
    move_median,
    move_min,
    move_quantile,
    move_rank,
    move_std,
    move_sum,
    move_var,
    pyramid,
)
from dask_coop.errors import CooperativeTimeout, Declined, FallbackWarning, Refused, RefusedByDask
from dask_coop.node.node import Node

if TYPE_CHECKING:
    from dask_coop.cluster.plugin import CoopPlugin

__version__ = "0.3.0"

# Where the documentation has the rows of monoids.
sys.modules[f"{__name__}.monoids"] = monoids
sys.modules[f"{__name__}.ndmeasure"] = ndmeasure

__all__ = [
    "CoopPlugin",
    "CooperativeTimeout",
    "CrosstabResult",
    "Declined",
    "Description",
    "Descriptions",
    "FallbackWarning",
    "Histogram",
    "Histogram2D",
    "LinregressResult",
    "ModeResult",
    "Monoid",
    "Node",
    "QuantileEstimate",
    "ReductionState",
    "Refused",
    "RefusedByDask",
    "RunEvents",
    "all",
    "any",
    "approx_nunique",
    "argmax",
    "argmin",
    "argsort",
    "argtopk",
    "argwhere",
    "average",
    "bfill",
    "bincount",
    "binned_statistic",
    "binned_statistic_2d",
    "binned_statistic_dd",
    "box_filter",
    "coarsen",
    "combine",
    "compress",
    "corrcoef",
    "count_in_runs",
    "count_nonzero",
    "count_runs",
    "cov",
    "crosstab",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "cumulative_trapezoid",
    "describe",
    "digitize",
    "ewm_corr",
    "ewm_cov",
    "ewm_mean",
    "ewm_std",
    "ewm_sum",
    "ewm_var",
    "explain",
    "extract",
    "ffill",
    "first_run",
    "flatnonzero",
    "from_npy",
    "from_zarr",
    "groupby_reduce",
    "groupby_scan",
    "histogram",
    "histogram2d",
    "histogramdd",
    "install",
    "installed",
    "integral_image",
    "isin",
    "kurtosis",
    "label",
    "last_run",
    "lexsort",
    "lfilter",
    "linregress",
    "logcumsumexp",
    "longest_run",
    "mad_std",
    "matmul",
    "max",
    "mean",
    "median",
    "median_abs_deviation",
    "min",
    "mode",
    "moment",
    "move_argmax",
    "move_argmin",
    "move_corr",
    "move_cov",
    "move_max",
    "move_mean",
    "move_median",
    "move_min",
    "move_quantile",
    "move_rank",
    "move_std",
    "move_sum",
    "move_var",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanpercentile",
    "nanprod",
    "nanquantile",
    "nanstd",
    "nansum",
    "nanvar",
    "nonzero",
    "norm",
    "nunique",
    "percentile",
    "percentileofscore",
    "polyfit",
    "prod",
    "ptp",
    "pyramid",
    "quantile",
    "rankdata",
    "reduce",
    "report",
    "run_events",
    "run_lengths",
    "scan",
    "searchsorted",
    "select",
    "sigma_clip",
    "skew",
    "sort",
    "sosfilt",
    "std",
    "sum",
    "to_gpu",
    "to_hist",
    "to_host",
    "to_zarr",
    "topk",
    "transpose",
    "uninstall",
    "unique",
    "value_counts",
    "var",
]


def __dir__() -> list[str]:
    return __all__


# Type checkers would take any name for one of the module's.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Only clusters need the plugin, so only they pay for importing distributed.
        if name == "CoopPlugin":
            from dask_coop.cluster.plugin import CoopPlugin

            return CoopPlugin
        raise no_attribute(f"module {__name__!r}", name, __all__, __name__)


async def dask_setup(node: Any) -> None:
    """Set up a worker or scheduler started with ``--preload dask_coop``; distributed calls this."""
    from distributed import Scheduler, Worker

    from dask_coop.cluster.private import logger, said

    try:
        from dask_coop.cluster.plugin import CoopPlugin
        from dask_coop.cluster.scheduler import SchedulerRounds
    except ImportError as error:
        # Start anyway; collectives run as graphs.
        logger.warning("no collectives on this %s: %s", type(node).__name__, said(error))
        return

    if isinstance(node, Worker):
        await node.plugin_add(CoopPlugin(), catch_errors=False)
    elif isinstance(node, Scheduler):
        # The scheduler starts its plugins next.
        node.add_plugin(SchedulerRounds(), idempotent=True)


def load_ipython_extension(ipython: Any) -> None:
    """Install the functions in a session of IPython: ``%load_ext dask_coop``."""
    install()


def unload_ipython_extension(ipython: Any) -> None:
    """Uninstall the functions: ``%unload_ext dask_coop``."""
    uninstall()


install_if_wanted()

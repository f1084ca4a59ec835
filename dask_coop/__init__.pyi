# Written by tools/stubs.py.

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

import dask.array as da
import numpy as np

from dask_coop.algebra import monoids as monoids
from dask_coop.algebra.quantiles import Method
from dask_coop.api.arguments import Axis, SplitEvery
from dask_coop.api.call.public import Engine
from dask_coop.api.call.report import report as report
from dask_coop.api.call.results import CrosstabResult as CrosstabResult
from dask_coop.api.call.results import Description as Description
from dask_coop.api.call.results import Descriptions as Descriptions
from dask_coop.api.call.results import Histogram as Histogram
from dask_coop.api.call.results import Histogram2D as Histogram2D
from dask_coop.api.call.results import LinregressResult as LinregressResult
from dask_coop.api.call.results import ModeResult as ModeResult
from dask_coop.api.call.results import QuantileEstimate as QuantileEstimate
from dask_coop.api.call.results import RunEvents as RunEvents
from dask_coop.api.explain import explain as explain
from dask_coop.api.groups.binned import BinnedStatistic, BinnedStatistic2D, BinStatistic
from dask_coop.api.groups.reduce import StatisticName
from dask_coop.api.groups.scan import ScanName
from dask_coop.api.histograms.lazy_bins import Nan
from dask_coop.api.install.install import install as install
from dask_coop.api.install.install import installed as installed
from dask_coop.api.install.install import uninstall as uninstall
from dask_coop.api.monoids.monoid import Monoid as Monoid
from dask_coop.api.monoids.states import ReductionState as ReductionState
from dask_coop.api.monoids.states import combine as combine
from dask_coop.api.selection import Sizes
from dask_coop.api.topk import SortKind
from dask_coop.api.windows import Mode
from dask_coop.chunks.backend import Side
from dask_coop.chunks.ranks import Ties
from dask_coop.cluster.plugin import CoopPlugin as CoopPlugin
from dask_coop.errors import CooperativeTimeout as CooperativeTimeout
from dask_coop.errors import Declined as Declined
from dask_coop.errors import FallbackWarning as FallbackWarning
from dask_coop.errors import Refused as Refused
from dask_coop.errors import RefusedByDask as RefusedByDask
from dask_coop.node.node import Node as Node

__version__: str

class Labelled(Protocol):
    """An xarray.DataArray or an xarray.Variable."""

    @property
    def dims(self) -> tuple[Hashable, ...]: ...
    @property
    def sizes(self) -> Mapping[Hashable, int]: ...

_L = TypeVar("_L", bound=Labelled)

#: What is computed at once: an array or a scalar of NumPy.
Value: TypeAlias = np.ndarray[Any, Any] | Any

@overload
def all(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    engine: Engine = "auto",
) -> _L: ...
@overload
def all(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    engine: Literal["collective"],
) -> Value: ...
@overload
def all(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def any(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    engine: Engine = "auto",
) -> _L: ...
@overload
def any(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    engine: Literal["collective"],
) -> Value: ...
@overload
def any(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def approx_nunique(
    a: _L,
    axis: Axis = None,
    error: float = 0.01,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def approx_nunique(
    a: Any,
    axis: Axis = None,
    error: float = 0.01,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def approx_nunique(
    a: Any,
    axis: Axis = None,
    error: float = 0.01,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def argmax(
    a: _L,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def argmax(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def argmax(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def argmin(
    a: _L,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def argmin(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def argmin(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def argsort(
    a: _L,
    axis: int | None = -1,
    kind: SortKind = None,
    order: None = None,
    *,
    stable: bool | None = None,
    descending: bool | None = None,
) -> _L: ...
@overload
def argsort(
    a: Any,
    axis: int | None = -1,
    kind: SortKind = None,
    order: None = None,
    *,
    stable: bool | None = None,
    descending: bool | None = None,
) -> da.Array: ...
@overload
def argtopk(
    a: _L, k: int, axis: int = -1, split_every: SplitEvery = None, *, engine: Engine = "auto"
) -> _L: ...
@overload
def argtopk(
    a: Any, k: int, axis: int = -1, split_every: SplitEvery = None, *, engine: Literal["collective"]
) -> Value: ...
@overload
def argtopk(
    a: Any, k: int, axis: int = -1, split_every: SplitEvery = None, *, engine: Engine = "auto"
) -> da.Array: ...
def argwhere(a: Any, *, sizes: Sizes = None, balanced: bool = False) -> da.Array: ...
def average(
    a: Any,
    axis: Axis = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> Any: ...
@overload
def bfill(
    x: _L,
    axis: int = -1,
    limit: int | None = None,
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def bfill(
    x: Any,
    axis: int = -1,
    limit: int | None = None,
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def bincount(
    x: Any,
    weights: Any = None,
    minlength: int = 0,
    split_every: int | None = None,
    *,
    reproducible: bool = False,
    engine: Literal["collective"],
) -> Value: ...
@overload
def bincount(
    x: Any,
    weights: Any = None,
    minlength: int = 0,
    split_every: int | None = None,
    *,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> da.Array: ...
def binned_statistic(
    x: Any,
    values: Any,
    statistic: BinStatistic | Sequence[BinStatistic] = "mean",
    bins: Any = 10,
    range: Any = None,
) -> BinnedStatistic: ...
def binned_statistic_2d(
    x: Any,
    y: Any,
    values: Any,
    statistic: BinStatistic | Sequence[BinStatistic] = "mean",
    bins: Any = 10,
    range: Any = None,
) -> BinnedStatistic2D: ...
def binned_statistic_dd(
    sample: Any,
    values: Any,
    statistic: BinStatistic | Sequence[BinStatistic] = "mean",
    bins: Any = 10,
    range: Any = None,
) -> BinnedStatistic: ...
@overload
def box_filter(
    x: _L, size: int | Sequence[int], axes: Sequence[int] = ..., *, mode: Mode = "reflect"
) -> _L: ...
@overload
def box_filter(
    x: Any, size: int | Sequence[int], axes: Sequence[int] = ..., *, mode: Mode = "reflect"
) -> da.Array: ...
def coarsen(
    reduction: Callable[..., Any],
    x: Any,
    axes: Mapping[int, int],
    trim_excess: bool = False,
    **kwargs: Any,
) -> da.Array: ...
def compress(
    condition: Any, a: Any, axis: int | None = None, *, sizes: Sizes = None, balanced: bool = False
) -> da.Array: ...
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> da.Array: ...
@overload
def count_in_runs(
    mask: _L,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def count_in_runs(
    mask: Any,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def count_in_runs(
    mask: Any,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def count_nonzero(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def count_nonzero(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def count_nonzero(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def count_runs(
    mask: _L,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def count_runs(
    mask: Any,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def count_runs(
    mask: Any,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> da.Array: ...
def crosstab(a: Any, b: Any) -> CrosstabResult: ...
@overload
def cummax(
    x: _L,
    axis: int,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def cummax(
    x: _L,
    axis: None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L | da.Array: ...
@overload
def cummax(
    x: Any,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def cummin(
    x: _L,
    axis: int,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def cummin(
    x: _L,
    axis: None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L | da.Array: ...
@overload
def cummin(
    x: Any,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def cumprod(
    x: _L,
    axis: int,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def cumprod(
    x: _L,
    axis: None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L | da.Array: ...
@overload
def cumprod(
    x: Any,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def cumsum(
    x: _L,
    axis: int,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def cumsum(
    x: _L,
    axis: None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L | da.Array: ...
@overload
def cumsum(
    x: Any,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def cumulative_prod(
    x: _L,
    /,
    *,
    axis: int,
    dtype: Any = None,
    out: da.Array | None = None,
    include_initial: bool = False,
    engine: Engine = "auto",
) -> _L: ...
@overload
def cumulative_prod(
    x: _L,
    /,
    *,
    axis: None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    include_initial: bool = False,
    engine: Engine = "auto",
) -> _L | da.Array: ...
@overload
def cumulative_prod(
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    include_initial: bool = False,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def cumulative_sum(
    x: _L,
    /,
    *,
    axis: int,
    dtype: Any = None,
    out: da.Array | None = None,
    include_initial: bool = False,
    engine: Engine = "auto",
) -> _L: ...
@overload
def cumulative_sum(
    x: _L,
    /,
    *,
    axis: None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    include_initial: bool = False,
    engine: Engine = "auto",
) -> _L | da.Array: ...
@overload
def cumulative_sum(
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    include_initial: bool = False,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def cumulative_trapezoid(
    y: _L,
    x: Any = None,
    dx: float = 1.0,
    axis: int = -1,
    initial: float | None = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def cumulative_trapezoid(
    y: Any,
    x: Any = None,
    dx: float = 1.0,
    axis: int = -1,
    initial: float | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
def describe(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> Description: ...
@overload
def digitize(a: _L, bins: Any, right: bool = False) -> _L: ...
@overload
def digitize(a: Any, bins: Any, right: bool = False) -> da.Array: ...
@overload
def ewm_corr(
    x: _L,
    y: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def ewm_corr(
    x: Any,
    y: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def ewm_cov(
    x: _L,
    y: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def ewm_cov(
    x: Any,
    y: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def ewm_mean(
    x: _L,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: Any = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    min_periods: int = 0,
    times: Any = None,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def ewm_mean(
    x: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: Any = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    min_periods: int = 0,
    times: Any = None,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def ewm_std(
    x: _L,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def ewm_std(
    x: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def ewm_sum(
    x: _L,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    ignore_na: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def ewm_sum(
    x: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    ignore_na: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def ewm_var(
    x: _L,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def ewm_var(
    x: Any,
    axis: int = -1,
    *,
    alpha: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    com: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    bias: bool = False,
    min_periods: int = 0,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
def extract(
    condition: Any, arr: Any, *, sizes: Sizes = None, balanced: bool = False
) -> da.Array: ...
@overload
def ffill(
    x: _L,
    axis: int = -1,
    limit: int | None = None,
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def ffill(
    x: Any,
    axis: int = -1,
    limit: int | None = None,
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def first_run(
    mask: _L,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def first_run(
    mask: Any,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def first_run(
    mask: Any,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
def flatnonzero(a: Any, *, sizes: Sizes = None, balanced: bool = False) -> da.Array: ...
def from_npy(path: str | os.PathLike[str], chunks: Any = "auto") -> da.Array: ...
def from_zarr(
    url: Any,
    component: str | None = None,
    storage_options: dict[str, Any] | None = None,
    chunks: Any = None,
    name: str | None = None,
    inline_array: bool = False,
    **kwargs: Any,
) -> da.Array: ...
@overload
def groupby_reduce(
    array: Any,
    *by: Any,
    func: StatisticName | Monoid,
    y: Any = None,
    expected_groups: Any = None,
    sort: bool = True,
    isbin: bool | Sequence[bool] = False,
    axis: Axis = None,
    fill_value: Any = None,
    dtype: Any = None,
    min_count: int | None = None,
    finalize_kwargs: Mapping[str, Any] | None = None,
    engine: Engine = "auto",
) -> tuple[da.Array, *tuple[Any, ...]]: ...
@overload
def groupby_reduce(
    array: Any,
    *by: Any,
    func: Sequence[StatisticName | Monoid],
    y: Any = None,
    expected_groups: Any = None,
    sort: bool = True,
    isbin: bool | Sequence[bool] = False,
    axis: Axis = None,
    fill_value: Any = None,
    dtype: Any = None,
    min_count: int | None = None,
    finalize_kwargs: Mapping[str, Any] | None = None,
    engine: Engine = "auto",
) -> tuple[tuple[da.Array, ...], *tuple[Any, ...]]: ...
@overload
def groupby_scan(
    array: _L,
    *by: Any,
    func: ScanName | Monoid,
    expected_groups: Any = None,
    axis: int = -1,
    dtype: Any = None,
    method: None = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def groupby_scan(
    array: Any,
    *by: Any,
    func: ScanName | Monoid,
    expected_groups: Any = None,
    axis: int = -1,
    dtype: Any = None,
    method: None = None,
    engine: Engine = "auto",
) -> da.Array: ...
def histogram(
    a: Any,
    bins: Any = 10,
    range: Any = None,
    normed: bool = False,
    weights: Any = None,
    density: bool | None = None,
    *,
    axis: int | tuple[int, ...] | None = None,
    flow: bool = False,
    nan: Nan = "raise",
    reproducible: bool = False,
    engine: Engine = "auto",
) -> Histogram: ...
def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,
    normed: bool | None = None,
    weights: Any = None,
    density: bool | None = None,
    *,
    nan: Nan = "raise",
    reproducible: bool = False,
    engine: Engine = "auto",
) -> Histogram2D: ...
def histogramdd(
    sample: Any,
    bins: Any = 10,
    range: Any = None,
    normed: bool | None = None,
    weights: Any = None,
    density: bool | None = None,
    *,
    nan: Nan = "raise",
    reproducible: bool = False,
    engine: Engine = "auto",
) -> Histogram: ...
@overload
def integral_image(x: _L, axes: Sequence[int] = ...) -> _L: ...
@overload
def integral_image(x: Any, axes: Sequence[int] = ...) -> da.Array: ...
@overload
def isin(
    element: _L,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    split_every: int | None = None,
) -> _L: ...
@overload
def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    split_every: int | None = None,
) -> da.Array: ...
@overload
def kurtosis(
    a: _L,
    axis: Axis = 0,
    fisher: bool = True,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def kurtosis(
    a: Any,
    axis: Axis = 0,
    fisher: bool = True,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Literal["collective"],
) -> Value: ...
@overload
def kurtosis(
    a: Any,
    axis: Axis = 0,
    fisher: bool = True,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> da.Array: ...
def label(x: Any, structure: Any = None) -> tuple[da.Array, da.Array]: ...
@overload
def last_run(
    mask: _L,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def last_run(
    mask: Any,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def last_run(
    mask: Any,
    axis: int = -1,
    min_length: int = 1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
def lexsort(keys: Any, axis: int = -1) -> da.Array: ...
def lfilter(
    b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None, *, method: str = "reduce-then-scan"
) -> da.Array | tuple[da.Array, da.Array]: ...
def linregress(
    x: Any,
    y: Any,
    alternative: str = "two-sided",
    *,
    axis: int = 0,
    nan_policy: str = "propagate",
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> LinregressResult: ...
@overload
def logcumsumexp(
    x: _L,
    axis: int,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def logcumsumexp(
    x: _L,
    axis: None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L | da.Array: ...
@overload
def logcumsumexp(
    x: Any,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def longest_run(
    mask: _L,
    axis: int = -1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def longest_run(
    mask: Any,
    axis: int = -1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def longest_run(
    mask: Any,
    axis: int = -1,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
def mad_std(data: Any, axis: Axis = None, *, ignore_nan: bool = False) -> da.Array: ...
def matmul(
    a: Any, b: Any, *, semiring: str = "plus_times", split_every: int | None = None
) -> da.Array: ...
@overload
def max(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> _L: ...
@overload
def max(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Literal["collective"],
) -> Value: ...
@overload
def max(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def mean(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    reproducible: bool = False,
    weights: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def mean(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    reproducible: bool = False,
    weights: Any = None,
    engine: Literal["collective"],
) -> Value: ...
@overload
def mean(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    reproducible: bool = False,
    weights: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def median(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    out: da.Array | None = None,
    *,
    split_every: int | None = None,
    recompute: bool = False,
    engine: Engine = "auto",
) -> _L: ...
@overload
def median(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    out: da.Array | None = None,
    *,
    split_every: int | None = None,
    recompute: bool = False,
    engine: Literal["collective"],
) -> Value: ...
@overload
def median(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    out: da.Array | None = None,
    *,
    split_every: int | None = None,
    recompute: bool = False,
    engine: Engine = "auto",
) -> da.Array: ...
def median_abs_deviation(
    x: Any, axis: Axis = 0, *, scale: float | str = 1.0, nan_policy: str = "propagate"
) -> da.Array: ...
@overload
def min(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> _L: ...
@overload
def min(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Literal["collective"],
) -> Value: ...
@overload
def min(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array: ...
def mode(
    a: Any,
    axis: Axis = 0,
    nan_policy: Literal["propagate", "omit"] = "propagate",
    keepdims: bool = False,
    *,
    engine: Engine = "auto",
) -> ModeResult: ...
@overload
def moment(
    a: _L,
    order: int,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def moment(
    a: Any,
    order: int,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def moment(
    a: Any,
    order: int,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def move_argmax(
    a: _L, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> _L: ...
@overload
def move_argmax(
    a: Any, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> da.Array: ...
@overload
def move_argmin(
    a: _L, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> _L: ...
@overload
def move_argmin(
    a: Any, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> da.Array: ...
@overload
def move_corr(
    x: _L,
    y: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 1,
    *,
    center: bool = False,
) -> _L: ...
@overload
def move_corr(
    x: Any,
    y: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 1,
    *,
    center: bool = False,
) -> da.Array: ...
@overload
def move_cov(
    x: _L,
    y: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 1,
    *,
    center: bool = False,
) -> _L: ...
@overload
def move_cov(
    x: Any,
    y: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 1,
    *,
    center: bool = False,
) -> da.Array: ...
@overload
def move_max(
    a: _L, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> _L: ...
@overload
def move_max(
    a: Any, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> da.Array: ...
@overload
def move_mean(
    a: _L, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> _L: ...
@overload
def move_mean(
    a: Any, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> da.Array: ...
@overload
def move_median(
    a: _L, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> _L: ...
@overload
def move_median(
    a: Any, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> da.Array: ...
@overload
def move_min(
    a: _L, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> _L: ...
@overload
def move_min(
    a: Any, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> da.Array: ...
@overload
def move_quantile(
    a: _L,
    window: int,
    q: float,
    min_count: int | None = None,
    axis: int = -1,
    *,
    center: bool = False,
) -> _L: ...
@overload
def move_quantile(
    a: Any,
    window: int,
    q: float,
    min_count: int | None = None,
    axis: int = -1,
    *,
    center: bool = False,
) -> da.Array: ...
@overload
def move_rank(a: _L, window: int, min_count: int | None = None, axis: int = -1) -> _L: ...
@overload
def move_rank(a: Any, window: int, min_count: int | None = None, axis: int = -1) -> da.Array: ...
@overload
def move_std(
    a: _L,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 0,
    *,
    center: bool = False,
) -> _L: ...
@overload
def move_std(
    a: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 0,
    *,
    center: bool = False,
) -> da.Array: ...
@overload
def move_sum(
    a: _L, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> _L: ...
@overload
def move_sum(
    a: Any, window: int, min_count: int | None = None, axis: int = -1, *, center: bool = False
) -> da.Array: ...
@overload
def move_var(
    a: _L,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 0,
    *,
    center: bool = False,
) -> _L: ...
@overload
def move_var(
    a: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    ddof: int = 0,
    *,
    center: bool = False,
) -> da.Array: ...
@overload
def nanargmax(
    a: _L,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nanargmax(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nanargmax(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nanargmin(
    a: _L,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nanargmin(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nanargmin(
    a: Any,
    axis: int | None = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nancumprod(
    x: _L,
    axis: int,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nancumprod(
    x: _L,
    axis: None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L | da.Array: ...
@overload
def nancumprod(
    x: Any,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nancumsum(
    x: _L,
    axis: int,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nancumsum(
    x: _L,
    axis: None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> _L | da.Array: ...
@overload
def nancumsum(
    x: Any,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nanmax(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nanmax(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nanmax(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nanmean(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    reproducible: bool = False,
    weights: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nanmean(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    reproducible: bool = False,
    weights: Any = None,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nanmean(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    reproducible: bool = False,
    weights: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nanmedian(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    out: da.Array | None = None,
    *,
    split_every: int | None = None,
    recompute: bool = False,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nanmedian(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    out: da.Array | None = None,
    *,
    split_every: int | None = None,
    recompute: bool = False,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nanmedian(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    out: da.Array | None = None,
    *,
    split_every: int | None = None,
    recompute: bool = False,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nanmin(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nanmin(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nanmin(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array: ...
def nanpercentile(
    a: Any,
    q: Any,
    axis: Axis = None,
    out: da.Array | None = None,
    overwrite_input: bool = False,
    method: Method = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    split_every: int | None = None,
    recompute: bool = False,
    error: float | None = None,
    engine: Engine = "auto",
) -> Any: ...
@overload
def nanprod(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nanprod(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nanprod(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array: ...
def nanquantile(
    a: Any,
    q: Any,
    axis: Axis = None,
    out: da.Array | None = None,
    overwrite_input: bool = False,
    method: Method = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    split_every: int | None = None,
    recompute: bool = False,
    error: float | None = None,
    engine: Engine = "auto",
) -> Any: ...
@overload
def nanstd(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nanstd(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nanstd(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nansum(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nansum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    reproducible: bool = False,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nansum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nanvar(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nanvar(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nanvar(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
def nonzero(a: Any, *, sizes: Sizes = None, balanced: bool = False) -> tuple[da.Array, ...]: ...
@overload
def norm(
    x: _L,
    ord: Any = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    *,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> _L: ...
@overload
def norm(
    x: Any,
    ord: Any = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    *,
    reproducible: bool = False,
    engine: Literal["collective"],
) -> Value: ...
@overload
def norm(
    x: Any,
    ord: Any = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    *,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def nunique(
    a: _L,
    axis: Axis = None,
    dropna: bool = True,
    keepdims: bool = False,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def nunique(
    a: Any,
    axis: Axis = None,
    dropna: bool = True,
    keepdims: bool = False,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def nunique(
    a: Any,
    axis: Axis = None,
    dropna: bool = True,
    keepdims: bool = False,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
def percentile(
    a: Any,
    q: Any,
    axis: Axis = None,
    out: da.Array | None = None,
    overwrite_input: bool = False,
    method: Method = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    split_every: int | None = None,
    recompute: bool = False,
    error: float | None = None,
    engine: Engine = "auto",
) -> Any: ...
def percentileofscore(
    a: Any,
    score: Any,
    kind: Literal["rank", "weak", "strict", "mean"] = "rank",
    nan_policy: Literal["propagate", "omit"] = "propagate",
) -> da.Array: ...
def polyfit(
    x: Any,
    y: Any,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Any = None,
    cov: bool | Literal["unscaled"] = False,
    *,
    axis: int = 0,
    nan_policy: Literal["propagate", "omit"] = "propagate",
) -> Any: ...
@overload
def prod(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> _L: ...
@overload
def prod(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Literal["collective"],
) -> Value: ...
@overload
def prod(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def ptp(
    a: _L,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> _L: ...
@overload
def ptp(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Literal["collective"],
) -> Value: ...
@overload
def ptp(
    a: Any,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array: ...
def pyramid(
    x: Any, levels: int, reduction: Callable[..., Any] = ..., factor: int | Mapping[int, int] = 2
) -> list[da.Array]: ...
def quantile(
    a: Any,
    q: Any,
    axis: Axis = None,
    out: da.Array | None = None,
    overwrite_input: bool = False,
    method: Method = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    split_every: int | None = None,
    recompute: bool = False,
    error: float | None = None,
    engine: Engine = "auto",
) -> Any: ...
def rankdata(
    a: Any,
    method: Ties = "average",
    *,
    axis: int | None = None,
    nan_policy: Literal["propagate", "omit"] = "propagate",
) -> da.Array: ...
def reduce(
    x: Any,
    monoid: Monoid | np.ufunc | str,
    axis: Axis = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    return_state: bool = False,
    options: Mapping[str, Any] | None = None,
    engine: Engine = "auto",
) -> Any: ...
def run_events(
    mask: Any,
    values: Any = None,
    axis: int = -1,
    min_length: int = 1,
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> RunEvents: ...
@overload
def run_lengths(
    mask: _L,
    axis: int = -1,
    index: Literal["first", "last"] = "first",
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def run_lengths(
    mask: Any,
    axis: int = -1,
    index: Literal["first", "last"] = "first",
    *,
    method: str = "reduce-then-scan",
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
def scan(
    x: Any,
    monoid: monoids.MonoidRow | np.ufunc,
    axis: int | None = None,
    dtype: Any = None,
    out: da.Array | None = None,
    method: str = "reduce-then-scan",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    engine: Engine = "auto",
) -> da.Array | tuple[da.Array, ...]: ...
def searchsorted(a: Any, v: Any, side: Side = "left", sorter: None = None) -> da.Array: ...
def select(
    x: Any, mask: Any, default: Any = 0, *, sizes: Sizes = None, balanced: bool = False
) -> da.Array: ...
def sigma_clip(
    data: Any,
    sigma: float = 3.0,
    sigma_lower: float | None = None,
    sigma_upper: float | None = None,
    maxiters: int | None = 5,
    cenfunc: Literal["median", "mean"] = "median",
    stdfunc: Literal["std", "mad_std"] = "std",
    axis: Axis = None,
    masked: bool = True,
    return_bounds: bool = False,
) -> Any: ...
@overload
def skew(
    a: _L,
    axis: Axis = 0,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def skew(
    a: Any,
    axis: Axis = 0,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Literal["collective"],
) -> Value: ...
@overload
def skew(
    a: Any,
    axis: Axis = 0,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def sort(
    a: _L,
    axis: int | None = -1,
    kind: SortKind = None,
    order: None = None,
    *,
    stable: bool | None = None,
    descending: bool | None = None,
) -> _L: ...
@overload
def sort(
    a: Any,
    axis: int | None = -1,
    kind: SortKind = None,
    order: None = None,
    *,
    stable: bool | None = None,
    descending: bool | None = None,
) -> da.Array: ...
def sosfilt(
    sos: Any, x: Any, axis: int = -1, zi: Any = None, *, method: str = "reduce-then-scan"
) -> da.Array | tuple[da.Array, da.Array]: ...
@overload
def std(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def std(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Literal["collective"],
) -> Value: ...
@overload
def std(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def sum(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> _L: ...
@overload
def sum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    reproducible: bool = False,
    engine: Literal["collective"],
) -> Value: ...
@overload
def sum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    initial: Any = None,
    where: Any = True,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> da.Array: ...
@overload
def to_gpu(x: _L, keep: bool | None = None) -> _L: ...
@overload
def to_gpu(x: Any, keep: bool | None = None) -> da.Array: ...
def to_hist(
    sample: Any, bins: Any, weights: Any = None, *, values: Any = None, engine: Engine = "auto"
) -> Any: ...
@overload
def to_host(x: _L) -> _L: ...
@overload
def to_host(x: Any) -> da.Array: ...
def to_zarr(
    x: Any,
    url: Any,
    component: str | None = None,
    storage_options: dict[str, Any] | None = None,
    region: tuple[slice, ...] | None = None,
    compute: bool = True,
    return_stored: bool = False,
    mode: str = "a",
    resume: bool = False,
    fsync: bool = False,
    **kwargs: Any,
) -> Any: ...
@overload
def topk(
    a: _L, k: int, axis: int = -1, split_every: SplitEvery = None, *, engine: Engine = "auto"
) -> _L: ...
@overload
def topk(
    a: Any, k: int, axis: int = -1, split_every: SplitEvery = None, *, engine: Literal["collective"]
) -> Value: ...
@overload
def topk(
    a: Any, k: int, axis: int = -1, split_every: SplitEvery = None, *, engine: Engine = "auto"
) -> da.Array: ...
@overload
def transpose(a: _L, axes: Sequence[int] | None = None, *, contiguous: bool = False) -> _L: ...
@overload
def transpose(
    a: Any, axes: Sequence[int] | None = None, *, contiguous: bool = False
) -> da.Array: ...
def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    equal_nan: bool = True,
    split_every: int | None = None,
) -> Any: ...
def value_counts(
    a: Any,
    *,
    n: int | None = None,
    sort: bool = True,
    ascending: bool = False,
    dropna: bool = True,
    normalize: bool = False,
    split_every: int | None = None,
) -> tuple[da.Array, da.Array]: ...
@overload
def var(
    a: _L,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Engine = "auto",
) -> _L: ...
@overload
def var(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Literal["collective"],
) -> Value: ...
@overload
def var(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    ddof: float = 0,
    split_every: SplitEvery = None,
    out: da.Array | None = None,
    *,
    where: Any = True,
    weights: Any = None,
    engine: Engine = "auto",
) -> da.Array: ...
async def dask_setup(node: Any) -> None: ...
def load_ipython_extension(ipython: Any) -> None: ...
def unload_ipython_extension(ipython: Any) -> None: ...

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

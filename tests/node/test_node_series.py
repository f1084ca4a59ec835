"""Groups, fills and windows on `Node`: what threads give, bit for bit, and every chunk in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from support.explained import launches
from support.host_cupy import backend as host_cupy
from support.host_cupy.gpus import FakeGpus

import dask_coop as dc
from dask_coop.chunks.backend import BACKENDS
from dask_coop.chunks.cupy.eligibility import Objection
from dask_coop.graph import joined
from dask_coop.node import node as module
from dask_coop.node import room, run

# One process at a time has all GPUs for its launches.
pytestmark = pytest.mark.xdist_group("node")

REFERENCE: Any = import_module(BACKENDS["numpy"].module)
RNG = np.random.default_rng(20)
#: What is done with numbers of which all sums are exact, as launches add them in another order.
EXACT = ("trapezoid", "image", "box")
WHOLE = RNG.integers(0, 99, (120, 50)).astype("f8")
GAPPY = np.where(RNG.random(WHOLE.shape) < 0.4, np.nan, WHOLE)
#: Two lines of chunks, of several lengths.
CHUNKS = ((20, 8, 12, 20, 20, 20, 20), (25, 25))
NBYTES = 20 * 25 * 8

MONTHS = np.repeat(np.arange(12), 10)
MIXED = RNG.integers(0, 7, 120)
REGIONS = RNG.integers(0, 5, WHOLE.shape)
HYPOT = dc.Monoid("hypot", np.hypot, 0, "f8", cuda="hypot(a, b)")

Call = Callable[[da.Array], Any]


def months(x: da.Array) -> da.Array:
    """Return an array with months along its last axis."""
    return x.T if x.ndim > 1 else x


def lazy_regions(x: da.Array) -> da.Array:
    """Return labels that are computed with the chunks, where these lie."""
    return da.where(x == x, x, 0).astype("i4") % 5


def moved(name: str, window: int, **given: Any) -> Call:
    return lambda x: getattr(dc, name)(x, window, axis=0, **given)


#: Of the shape of the array, so that every chunk lies where the one that it is made of does; and
#: how many lines go from one GPU to the next, where that is told by what is asked for.
IN_PLACE: dict[str, tuple[Call, int | None]] = {
    "ffill": (lambda x: dc.ffill(x, 0), 0),
    "ffill of few": (lambda x: dc.ffill(x, -1, limit=2), 0),
    "ffill in turn": (lambda x: dc.ffill(x, 0, method="sequential"), 0),
    "ffill of parts": (lambda x: dc.ffill(x, 0, segments=x > 70), 0),
    "bfill": (lambda x: dc.bfill(x, 0), 0),
    "bfill of few": (lambda x: dc.bfill(x, 0, limit=30), 0),
    "ewm_mean": (lambda x: dc.ewm_mean(x, 0, span=5), 0),
    "ewm_mean of some": (
        lambda x: dc.ewm_mean(x, -1, alpha=0.5, adjust=False, min_periods=3),
        0,
    ),
    "cumulative_trapezoid": (lambda x: dc.cumulative_trapezoid(x, axis=0, initial=0), 1),
    "cumulative_trapezoid between places": (
        lambda x: dc.cumulative_trapezoid(x, MONTHS**2, axis=0),
        1,
    ),
    "integral_image": (lambda x: dc.integral_image(x, range(x.ndim)), 0),
    "move_sum": (moved("move_sum", 7), 6),
    "move_mean": (moved("move_mean", 5, min_count=2, center=True), 4),
    "move_std": (moved("move_std", 4, ddof=1), 3),
    "move_var": (moved("move_var", 8, min_count=1), 7),
    "move_min": (moved("move_min", 3, min_count=1), 2),
    "move_max": (moved("move_max", 6, center=True), 5),
    "box_filter": (lambda x: dc.box_filter(x, 3, range(x.ndim)), None),
    "box_filter beyond the border": (lambda x: dc.box_filter(x, 4, (0,), mode="nearest"), 3),
    "box_filter around": (lambda x: dc.box_filter(x, 5, (-1,), mode="wrap"), None),
    "groupby_scan of runs": (
        lambda x: dc.groupby_scan(months(x), MONTHS, func="nancumsum").T,
        None,
    ),
}
#: Of other shapes, or of what lies on several GPUs.
OTHERS: dict[str, Call] = {
    "move_sum over several chunks": moved("move_sum", 70, min_count=1),
    "move_max over several chunks": moved("move_max", 55, min_count=1, center=True),
    "move_std over several chunks": moved("move_std", 41, min_count=5),
    "box_filter over several chunks": lambda x: dc.box_filter(x, 45, (0,)),
    "groupby_scan": lambda x: dc.groupby_scan(months(x), MIXED, func="cummax"),
    **{
        f"groupby_reduce by {func}": lambda x, func=func: dc.groupby_reduce(
            months(x), MONTHS, func=func, fill_value=np.nan
        )
        for func in ("sum", "nanmean", "var", "nanmax", "argmin", "nanfirst", "last", "count")
    },
    "groupby_reduce of scattered groups": lambda x: dc.groupby_reduce(
        months(x), MIXED, func=["nanstd", "nanmin", "nanargmax"]
    ),
    "groupby_reduce of two labels": lambda x: dc.groupby_reduce(
        months(x), MONTHS, MIXED, func="nansum", fill_value=0, expected_groups=(None, range(9))
    ),
    "groupby_reduce of bins": lambda x: dc.groupby_reduce(
        months(x), MONTHS, func="nanprod", isbin=True, expected_groups=[0, 2.5, 4, 11]
    ),
    "groupby_reduce of zones": lambda x: dc.groupby_reduce(
        x, REGIONS[tuple(map(slice, x.shape))] if x.ndim > 1 else MIXED, func=["sum", "nanmean"]
    ),
    "groupby_reduce of lazy zones": lambda x: dc.groupby_reduce(
        x, lazy_regions(x), func=["count", "nanmax"], expected_groups=range(5)
    ),
    "groupby_reduce of rows": lambda x: dc.groupby_reduce(
        x, lazy_regions(x), func="nansum", axis=0, fill_value=-1, expected_groups=range(5)
    ),
    "groupby_reduce by one's own": lambda x: dc.groupby_reduce(months(x), MIXED, func=HYPOT),
    "groupby_reduce by nanmedian": lambda x: dc.groupby_reduce(months(x), MONTHS, func="nanmedian"),
    "groupby_reduce by quantile": lambda x: dc.groupby_reduce(
        months(x), MIXED, func="nanquantile", finalize_kwargs={"q": [0.1, 0.5]}
    ),
}


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave chunks apart, which would be joined to one if they lie on one GPU."""
    monkeypatch.setattr(joined, "LARGE_BYTES", 0)


@pytest.fixture(
    params=[
        pytest.param(1 << 18, id="states on the host"),
        pytest.param(0, id="states on the GPUs"),
        pytest.param(None, marks=pytest.mark.gpu, id="real"),
    ]
)
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield GPUs that are made up, or the real ones: on which one an array lies, what was moved."""
    if request.param is None:
        yield SimpleNamespace(device_of=lambda x: x.device.id, moved=lambda: 0, is_fake=False)
        return
    fake = FakeGpus(4)
    monkeypatch.setattr(module, "_peers", lambda: fake)
    team = SimpleNamespace(Team=lambda *_: SimpleNamespace(objection=""), scan=scan_all)
    monkeypatch.setattr(run, "_multichunk", lambda: team)
    monkeypatch.setattr(run, "objection_to_chunks", lambda *_: Objection("GPUs are fakes"))
    with host_cupy.in_cupys_place(fake, request.param):
        yield SimpleNamespace(
            device_of=fake.device_of,
            moved=lambda: fake.moved,
            is_fake=True,
            small=bool(request.param),
        )


def arrays(result: Any) -> list[da.Array]:
    """Return the arrays that a call has made, without the groups of the host."""
    if isinstance(result, tuple | list):
        return [array for part in result for array in arrays(part)]
    return [result] if isinstance(result, da.Array) else []


def by_threads(gpus: Any, call: Call, host: Any, chunks: Any) -> list[Any]:
    """Return what Dask's threads make, on the host."""
    x = da.from_array(host, chunks=chunks)
    lazy = arrays(call(x if gpus.is_fake else dc.to_gpu(x)))
    return list(dask.compute(*map(dc.to_host, lazy), scheduler="threads"))


def places(gpus: Any, x: da.Array) -> list[int]:
    """Return the GPU of each chunk."""
    return [gpus.device_of(chunk) for chunk in dask.compute(*x.to_delayed().ravel())]


def same_bits(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found, expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.each(2)
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("name", [*IN_PLACE, *OTHERS])
def test_results_are_those_of_threads_and_lie_where_they_should(
    gpus: Any, name: str, dims: int
) -> None:
    call, lines = IN_PLACE[name] if name in IN_PLACE else (OTHERS[name], None)
    host = WHOLE if any(word in name for word in EXACT) else GAPPY
    sizes: Any = CHUNKS
    if dims == 1:
        host, sizes = host[:, 0], CHUNKS[:1]
    expected = by_threads(gpus, call, host, sizes)
    with dc.Node() as node:
        x = dc.to_gpu(da.from_array(host, chunks=sizes)).persist()
        before = gpus.moved()
        made = dask.persist(*arrays(call(x)))
        copied = gpus.moved() - before
        assert {gpu for y in made for gpu in places(gpus, y)} <= {*node.devices}
        if name in IN_PLACE:
            (y,) = made
            assert places(gpus, y) == places(gpus, x)
            assert copied <= x.nbytes / 3
        if gpus.is_fake and gpus.small and dims == 2 and lines is not None:
            assert copied == lines * host[0].nbytes * (len(node.devices) - 1)
        found = dask.compute(*map(dc.to_host, made))
    for each in zip(found, expected, strict=True):
        same_bits(*each)


def scan_all(team: Any, op: Any, xs: Any, wanted: Any, spec: Any) -> list[Any]:
    """Scan lines on several GPUs that are made up."""
    results, base = [], None
    for x in xs:
        y, base = REFERENCE.scan_on(op, x.view(np.ndarray), spec, base)
        y = y.view(type(x))
        y.device = x.device
        results.append(y)
    return results


LINES: dict[str, Call] = {
    "cumulative_trapezoid": lambda x: dc.cumulative_trapezoid(x),
    "integral_image": lambda x: dc.integral_image(x, (0,)),
    "ewm_mean": lambda x: dc.ewm_mean(x, com=1, min_periods=4),
}


@pytest.mark.parametrize("name", LINES)
def test_sums_along_a_line_are_one_launch(
    gpus: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if gpus.is_fake:
        monkeypatch.setattr(run, "objection_to_chunks", lambda *_: None)
    sizes = CHUNKS[:1]
    expected = by_threads(gpus, LINES[name], WHOLE[:, 0], sizes)
    with dc.Node() as node:
        if len(node.devices) < 2:
            pytest.skip("needs two GPUs")
        x = dc.to_gpu(da.from_array(WHOLE[:, 0], chunks=sizes)).persist()
        y = LINES[name](x).persist()
        told = node.explain()
        assert places(gpus, y) == places(gpus, x)
        (found,) = dask.compute(dc.to_host(y))
    assert f"one launch over {len(sizes[0])} chunks" in told
    # What is weighted by its place has no launch.
    assert ("does not commute" in told) == (name == "ewm_mean")
    same_bits(found, expected[0])


@pytest.mark.parametrize("short", [False, True], ids=["room", "no room"])
def test_groups_fills_and_windows_are_plain_tasks(
    gpus: Any, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if short:
        said = "3 tasks waited until less than 1 B was taken"
        monkeypatch.setattr(room.Room, "explain", lambda self: said)
    with dc.Node() as node:
        x = dc.to_gpu(da.from_array(GAPPY[:, 0], chunks=CHUNKS[:1])).persist()
        dc.bfill(x, limit=3).persist()
        assert launches(node).endswith("plain tasks, because fill_3 does not commute")
        dc.groupby_scan(x, MONTHS, func="nancumsum").persist()
        assert launches(node).endswith("plain tasks, because it has segments")
        # Of these no launch is looked for.
        dask.persist(dc.move_max(x, 40), dc.groupby_reduce(x, MONTHS, func="max")[0])
        assert launches(node) == ""

"""What every suite shares: kinds of chunk, the way in and out of them, Hypothesis's profiles."""

from __future__ import annotations

import gc
import importlib
import logging
import math
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import currently_in_test_context, settings
from support.compiled import THOROUGH
from support.loops import compile_from

# The same examples on every run, so that a failure in CI is a failure here;
# HYPOTHESIS_PROFILE=thorough looks further, at random.
settings.register_profile("ci", max_examples=20, derandomize=True, deadline=None, database=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Workers of all clusters, those of other processes too, would look at their stacks every 10 ms.
os.environ["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"
dask.config.refresh()

# What is imported and collected stays: to look for garbage among it takes much of the time.
gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep every n-th combination of the parameters of a test marked ``each(n)``.

    A combination stays if the positions of its values add up to a multiple of n. So a parameter
    keeps all its values if another one has n of them. A test named with its parameters always runs.
    """
    if THOROUGH or any("[" in argument for argument in config.args):
        return
    positions: dict[tuple[str, int], dict[Any, int]] = defaultdict(dict)

    def is_left_out(item: Any) -> bool:
        if (marker := item.get_closest_marker("each")) is None:
            return False
        test, total = item.nodeid.partition("[")[0], 0
        for number, choice in enumerate(choices(item)):
            known = positions[test, number]
            total += known.setdefault(choice, len(known))
        return bool(total % marker.args[0])

    left_out = {item for item in items if is_left_out(item)}
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def choices(item: Any) -> list[tuple[int, ...]]:
    """Return the values that each decorator and each fixture chose for a test, by their identity.

    pytest's own `indices` count the combinations, and not the values of a parameter.
    """
    params = dict(item.callspec.params)
    together = [mark.args[0] for mark in item.iter_markers("parametrize")]
    groups = [re.findall(r"\w+", names) if isinstance(names, str) else names for names in together]
    chosen = [tuple(id(params.pop(name)) for name in names) for names in groups]
    return chosen + [(id(value),) for value in params.values()]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from now on, of what the tests make."""
    gc.freeze()
    gc.set_threshold(5000, 10, 10)
    gc.enable()
    # Else the next one would wait for a share of what is frozen.
    gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked gpu where there is no GPU, before any fixture looks for one."""
    if item.get_closest_marker("gpu"):
        missing = missing_for_gpu()
        if not missing and item.get_closest_marker("cublas"):
            missing = missing_for_matrices()
        if missing:
            pytest.skip(missing)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Drop the chunks that a test has left on GPUs, which the next one would take for its own."""
    if (kept := sys.modules.get("dask_coop.chunks.kept")) is not None:
        kept.KEPT_CHUNKS.clear()


# Of the session, because Hypothesis refuses fixtures that would be made anew for every example.
@pytest.fixture(scope="session", params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> ModuleType:
    """Return NumPy, then CuPy: the module whose arrays a test's chunks are."""
    return importlib.import_module(request.param)


@pytest.fixture
def cp() -> Any:
    """Return CuPy, to tests that are marked gpu."""
    return importlib.import_module("cupy")


@pytest.fixture(params=[False, True], ids=["", "compiled"])
def _compiled_groups(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile loops of groups for chunks of every size, or for none."""
    with pytest.MonkeyPatch.context() as patch:
        compile_from(patch, 1 if request.param else math.inf, "groups", "paired")
        yield


@pytest.fixture
def gives_back() -> Iterator[None]:
    """Give what a test has taken of the GPU back, for others; CuPy's pool would keep it."""
    yield
    importlib.import_module("cupy").get_default_memory_pool().free_all_blocks()


@pytest.fixture
def fallbacks(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return what takes the reasons why functions have run as graphs."""
    caplog.set_level(logging.INFO, logger="dask_coop.api.public")

    def take() -> list[str]:
        # Those of a test are gone from `caplog.records` when its fixtures end.
        phases = [caplog.get_records(when) for when in ("setup", "call", "teardown")]
        records = [record for phase in phases for record in phase]
        said = [r.getMessage() for r in records if r.name == "dask_coop.api.public"]
        for phase in phases:
            phase.clear()
        return [reason for reason in said if " runs as a graph: " in reason]

    return take


@cache
def missing_for_gpu() -> str:
    """Name what keeps this machine from running GPU tests; "" if nothing does."""
    try:
        import cupy
    except ImportError as error:
        return f"GPU tests need CuPy: {error}"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"GPU tests need an NVIDIA GPU: {error}"
    return ""


@cache
def missing_for_matrices() -> str:
    """Name what keeps CuPy from multiplying matrices; "" if nothing does."""
    try:
        from cupy_backends.cuda.libs import cublas, cusolver
    except ImportError as error:
        return f"products of matrices need CUDA's libraries, cupy-cuda12x[ctk]: {error}"
    del cublas, cusolver
    return ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped, a line for each reason and not for each test."""
    skipped = terminalreporter.stats.get("skipped", ())
    for reason, count in Counter(report.longrepr[2] for report in skipped).items():
        terminalreporter.line(f"{count} tests: {reason}")


def to_chunks(xp: ModuleType, array: Any, chunks: Any) -> da.Array:
    """Return `array` as a Dask array with chunks of the kind of `xp`'s."""
    x = da.from_array(array, chunks=chunks)
    if xp is np:
        return x
    return x.map_blocks(xp.asarray, dtype=x.dtype, meta=xp.zeros((0,) * x.ndim, x.dtype))


def fused_for_few() -> dask.config.set:
    """Return a context in which Dask fuses no tasks of Hypothesis's many small examples.

    They run faster so; those of other tests, and of a thorough run, are fused.
    """
    many = currently_in_test_context() and settings.get_current_profile_name() != "thorough"
    return dask.config.set({"optimization.fuse.active": not many})


def to_numpy(xp: ModuleType, lazy: da.Array) -> Any:
    """Compute `lazy`, hold it to the kind, dtype and shape that it promised, and return NumPy's."""
    assert type(lazy._meta) is xp.ndarray
    # NumPy warns of overflow and of inf - inf; the tests judge the values.
    with np.errstate(all="ignore"), fused_for_few():
        result = lazy.compute(scheduler="synchronous")
    assert isinstance(result, xp.ndarray) or (xp is np and isinstance(result, np.generic))
    assert result.dtype == lazy.dtype
    assert lazy.shape == result.shape
    return result if xp is np else xp.asnumpy(result)

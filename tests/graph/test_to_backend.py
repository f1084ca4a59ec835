"""Dask's `to_backend` goes the way of to_gpu and to_host while somebody wants it, GPUs made up."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.dispatch import to_cupy_dispatch, to_numpy_dispatch
from dask.tokenize import tokenize
from dask.utils import Dispatch
from distributed import Client, LocalCluster
from support.host_cupy import lists
from support.host_cupy.gpus import FakeGpus
from support.host_cupy.lists import ListArray, plain

import dask_coop as dc
from dask_coop.chunks import backend
from dask_coop.cluster import plugin
from dask_coop.graph import transfer
from dask_coop.node import node


def enter() -> None:
    """Enter what stands for CuPy's functions into Dask's tables, as `register_cupy` does."""
    to_cupy_dispatch.register(np.ndarray, lambda x, **options: ("Dask's", options))
    to_numpy_dispatch.register(ListArray, lambda x, **options: ("Dask's", options))


@pytest.fixture(autouse=True)
def _cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have ListArray be CuPy's class."""
    for dispatch in (to_cupy_dispatch, to_numpy_dispatch):
        monkeypatch.setattr(dispatch, "_lookup", dict(dispatch._lookup))
        monkeypatch.setattr(dispatch, "_lazy", dict(dispatch._lazy))
    enter()
    before = Dispatch.__call__
    with lists.in_cupys_place():
        yield
    assert Dispatch.__call__ is before
    assert not transfer._wanted


@pytest.fixture
def _taken() -> Iterator[None]:
    give_back = transfer.take_over()
    yield
    assert give_back()


X = np.arange(6.0).reshape(2, 3)


def is_ours() -> bool:
    return isinstance(to_cupy_dispatch(X), ListArray)


def test_it_is_ours_while_somebody_wants_it() -> None:
    assert not is_ours()
    first = transfer.take_over((8 << 20, "auto"))
    second = transfer.take_over((9 << 20, True))
    there = to_cupy_dispatch(X)
    np.testing.assert_array_equal(plain(there), X)
    assert not first()
    np.testing.assert_array_equal(to_numpy_dispatch(there), X)
    assert lists.copies == [("GPU", 9 << 20, True), ("host", 9 << 20)]
    assert second()
    assert to_numpy_dispatch(there) == ("Dask's", {})
    assert not is_ours()


def test_what_another_library_puts_around_ours_stays() -> None:
    give_back = transfer.take_over()
    ours, called = Dispatch.__call__, []

    def theirs(dispatch: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(dispatch)
        return ours(dispatch, *args, **kwargs)

    Dispatch.__call__ = theirs
    try:
        assert is_ours()
        assert give_back()
        assert Dispatch.__call__ is theirs
        assert not is_ours()
        assert len(called) == 2
    finally:
        Dispatch.__call__ = ours
        assert transfer.take_over()()
    assert Dispatch.__call__ is not ours


@pytest.mark.usefixtures("_taken")
def test_what_dask_enters_later_changes_nothing() -> None:
    assert is_ours()
    enter()
    to_cupy_dispatch.register_lazy("numpy", enter)
    assert is_ours()
    assert isinstance(to_numpy_dispatch(to_cupy_dispatch(X)), np.ndarray)


@pytest.mark.usefixtures("_taken")
def test_a_table_that_comes_from_another_process_is_not_asked() -> None:
    sent = cloudpickle.loads(cloudpickle.dumps(to_cupy_dispatch))
    assert sent is not to_cupy_dispatch
    assert isinstance(sent(X), ListArray)


@pytest.mark.usefixtures("_taken")
@pytest.mark.parametrize(
    ("x", "options"),
    [
        (np.ma.array([1.0, 2.0], mask=[0, 1]), {}),
        (np.array([None, 1]), {}),
        (np.array(["a", "b"]), {}),
        (np.zeros(3, "M8[s]"), {}),
        (np.zeros(3, [("a", "f4")]), {}),
        (np.zeros(3, np.longdouble), {}),
        (np.rec.fromarrays([X], names="a"), {}),
        (X, {"order": "F"}),
        (X, {"blocking": True}),
    ],
    ids=lambda value: getattr(value, "dtype", value) if value is not X else "",
)
def test_what_ours_do_not_take_is_dasks(x: Any, options: dict[str, Any]) -> None:
    assert to_cupy_dispatch(x, **options) == ("Dask's", options)
    assert lists.copies == []


@pytest.mark.usefixtures("_taken")
def test_options_and_arrays_of_the_host_on_the_way_back() -> None:
    assert to_numpy_dispatch(to_cupy_dispatch(X), order="F") == ("Dask's", {"order": "F"})
    assert to_numpy_dispatch(X) is X
    with pytest.raises(TypeError, match="No dispatch for"):
        to_cupy_dispatch("text")
    assert lists.copies == [("GPU", None, "auto")]


def test_other_dispatches_are_left_alone() -> None:
    unnamed, other = Dispatch(), Dispatch("other")
    for dispatch in (unnamed, other):
        dispatch.register(np.ndarray, lambda x, *args, **options: (len(x), args, options))
    give_back = transfer.take_over()
    try:
        for dispatch in (unnamed, other):
            assert dispatch(X, 1, a=2) == (2, (1,), {"a": 2})
    finally:
        give_back()


def test_names_stay_what_they_are() -> None:
    names = [tokenize(to_cupy_dispatch)]
    give_back = transfer.take_over()
    names.append(tokenize(to_cupy_dispatch))
    give_back()
    assert names[0] == names[1]


@pytest.fixture
def _gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_peers", lambda: FakeGpus(2))


@pytest.mark.usefixtures("_gpus")
def test_it_is_ours_until_the_last_node_is_closed() -> None:
    with dask.config.set({"coop.transfer.buffers": "16 MiB", "coop.transfer.direct": False}):
        first, second = dc.Node(), dc.Node()
    assert is_ours()
    assert lists.copies == [("GPU", 16 << 20, False)]
    first.close()
    first.close()
    assert is_ours()
    del second
    gc.collect()
    assert not is_ours()


@pytest.mark.usefixtures("_gpus")
def test_tasks_of_a_node_go_our_way() -> None:
    x = da.from_array(X, chunks=(1, 3))
    with dc.Node():
        there = x.map_blocks(to_cupy_dispatch, dtype=x.dtype, meta=x._meta)
        back = there.map_blocks(to_numpy_dispatch, dtype=x.dtype, meta=x._meta)
        np.testing.assert_array_equal(back.compute(), X)
    assert sorted(where for where, *_ in lists.copies) == ["GPU", "GPU", "host", "host"]


@pytest.mark.usefixtures("_gpus")
def test_a_node_refuses_too_little_memory() -> None:
    words = "coop.transfer.buffers must be a number of bytes .* at least 16.00 MiB, got '1 MiB'"
    with dask.config.set({"coop.transfer.buffers": "1 MiB"}):
        with pytest.raises(ValueError, match=words):
            dc.Node()
        with pytest.raises(ValueError, match=words):
            dc.CoopPlugin()


def test_who_is_collected_meanwhile_gives_it_back() -> None:
    first, given_back = transfer.take_over(), threading.Event()

    def collect() -> None:
        # As garbage is collected in `take_over`.
        with transfer._lock:
            first()
        given_back.set()

    threading.Thread(target=collect, daemon=True).start()
    assert given_back.wait(20)
    assert not transfer._wanted


def test_a_chunk_without_axes_is_stored() -> None:
    out = np.zeros(())
    options = {"region": None, "lock": False, "return_stored": False, "load_stored": False}
    transfer.store_chunk(np.full((), 3.0), out, (), **options)
    assert out == 3


def test_it_is_ours_on_workers_until_the_plugin_or_they_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(plugin, "_missing_gpu", str)
    monkeypatch.setattr(dc.CoopPlugin, "_load", lambda *_: None)
    monkeypatch.setattr(plugin, "_close_rings", lambda: closed.append(is_ours()))
    # Workers in this process: each has its copy of the plugin.
    options: dict[str, Any] = {"n_workers": 2, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.register_plugin(dc.CoopPlugin())
        client.register_plugin(dc.CoopPlugin())
        assert is_ours()
        x = da.from_array(X, chunks=(1, 3))
        there = x.map_blocks(to_cupy_dispatch, dtype=x.dtype, meta=x._meta)
        back = there.map_blocks(to_numpy_dispatch, dtype=x.dtype, meta=x._meta)
        np.testing.assert_array_equal(back.compute(), X)
        client.unregister_worker_plugin("dask-coop")
        assert not is_ours()
        assert closed == [False]
        client.register_plugin(dc.CoopPlugin())
        assert is_ours()
    assert not is_ours()
    assert closed == [False, False]


def test_on_a_worker_without_a_gpu_nothing_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_missing_gpu", lambda: "no device")
    options: dict[str, Any] = {"n_workers": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.register_plugin(dc.CoopPlugin())
        assert not is_ours()


def test_a_preloaded_worker_gives_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Callable[..., Any]] = []
    monkeypatch.setattr(plugin, "_missing_gpu", str)
    monkeypatch.setattr(dc.CoopPlugin, "_load", lambda *_: said.append(is_ours))
    monkeypatch.setattr(plugin, "_close_rings", lambda: None)
    with LocalCluster(
        n_workers=1, processes=False, dashboard_address=":0", preload=["dask_coop"]
    ) as cluster:
        with Client(cluster) as client:
            assert client.submit(int, "7").result() == 7
        assert is_ours()
    assert said


def test_a_chunk_for_which_there_is_no_gpu_says_so() -> None:
    row = backend.BackendRow("cupy", ("cupy.ndarray",), "dask_coop.chunks.not_there")
    # Undone before the fixture is.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backend.BACKENDS, "cupy", row)
        with pytest.raises(RuntimeError, match="an array of cupy, which does not import here: No "):
            backend.asarray(X, "cupy")

"""NumPy's functions that Dask lacks, while ours are installed: served, or in memory in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks

import dask_coop as dc
from dask_coop.api.call import report

X = np.random.default_rng(3).normal(size=(12, 5))
X[2, 3] = X[7, 3] = np.nan
WHOLE = np.nan_to_num(X).round().astype("i8")
AT = np.linspace(0, 3, 12) ** 2


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the functions, with an empty report."""
    monkeypatch.setattr(report, "_calls", Counter())
    with dc.installed():
        yield


def calls() -> set[tuple[str, str]]:
    """Return the functions that were called, and what served them."""
    return {(row.function, row.served_by) for row in dc.report()}


#: By case: the function of ours that serves it, the call, and an array.
SERVED: dict[str, tuple[str, Callable[[Any], Any], Any]] = {
    "sort": ("sort", lambda x: np.sort(x, axis=0), X),
    "sort, stable": ("sort", lambda x: np.sort(x, stable=True), X),
    "sort, kind": ("sort", lambda x: np.sort(x, None, "mergesort"), X),
    "argsort": ("argsort", lambda x: np.argsort(x, axis=0, stable=True), WHOLE),
    "cumulative_sum": ("cumulative_sum", lambda x: np.cumulative_sum(x, axis=1), X),
    "cumulative_sum, initial": (
        "cumulative_sum",
        lambda x: np.cumulative_sum(x, axis=0, include_initial=True, dtype="f8"),
        WHOLE,
    ),
    "cumulative_prod": ("cumulative_prod", lambda x: np.cumulative_prod(x, axis=0), X),
    "unique_counts": ("unique", lambda x: np.unique_counts(x).counts, WHOLE),
    "unique_inverse": ("unique", lambda x: np.unique_inverse(x).inverse_indices, WHOLE),
    "unique_all": ("unique", lambda x: np.unique_all(x).indices, WHOLE),
    "unique_values": ("unique", lambda x: np.sort(np.unique_values(x)), WHOLE),
    "unique_values, NaN": ("unique", lambda x: np.sort(np.unique_values(x)), X),
    "unique, sorted": ("unique", lambda x: np.unique(x, sorted=True), WHOLE),
    "trapezoid": ("sum", lambda x: np.trapezoid(x, axis=0), X),
    "trapezoid, dx": ("sum", lambda x: np.trapezoid(x, dx=0.5), WHOLE),
    "trapezoid, x": ("sum", lambda x: np.trapezoid(x, AT, axis=0), X),
    "trapezoid, one sample": ("sum", lambda x: np.trapezoid(x[:1], axis=0), X),
    "partition": ("sort", lambda x: np.partition(x, 4, axis=0)[4], X),
    "argpartition": ("argsort", lambda x: x[np.argpartition(x[:, 0], [2, -1])[2], 0], X),
    "count_nonzero": (
        "count_nonzero",
        lambda x: np.count_nonzero(x, axis=(0, 1), keepdims=True),
        WHOLE,
    ),
    "histogram_bin_edges": (
        "histogram",
        lambda x: np.histogram_bin_edges(x, 7),
        WHOLE,
    ),
    "vector_norm": ("norm", lambda x: np.linalg.vector_norm(x, axis=0, ord=1), X),
    "vector_norm, all": ("norm", lambda x: np.linalg.vector_norm(x, keepdims=True), X),
    "vector_norm, line": ("norm", lambda x: np.linalg.vector_norm(x[:, 0], ord=3), X),
    "matrix_norm": ("norm", lambda x: np.linalg.matrix_norm(x, ord=1, keepdims=True), X),
}


#: The first NumPy that has the function, or the argument.
SINCE = {"cumulative_sum": "2.1.0", "cumulative_prod": "2.1.0", "unique, sorted": "2.3.0"}


@pytest.mark.parametrize("case", SERVED)
def test_what_we_have_is_ours(xp: Any, case: str) -> None:
    name, call, array = SERVED[case]
    if np.lib.NumpyVersion(np.__version__) < SINCE.get(case, SINCE.get(name, "2.0.0")):
        pytest.skip(f"NumPy {np.__version__} has no {case}")
    x = to_chunks(xp, array, (5, 2))
    # It warns where NumPy would compute in memory, and warnings are errors here.
    result = call(x)
    assert isinstance(result, da.Array)
    assert (name, "dask_coop") in calls()
    assert not {who for _, who in calls()} - {"dask_coop"}
    expected = call(array)
    assert result.dtype == expected.dtype
    found = result.compute(scheduler="synchronous")
    if name != "histogram":
        # The edges of bins are NumPy's, whatever the chunks.
        assert isinstance(found, xp.ndarray | np.generic)
    found = found if xp is np else xp.asnumpy(found)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_results_are_named_as_numpys() -> None:
    x = da.from_array(WHOLE, chunks=(5, 2))
    for name in ("unique_all", "unique_counts", "unique_inverse"):
        ours, numpys = getattr(np, name)(x), getattr(np, name)(WHOLE)
        assert type(ours) is type(numpys)
        for found, expected in zip(dask.compute(*ours), numpys, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "options", [{}, {"left": -1.0, "right": np.inf}, {"period": 2.5}, {"fp": AT * 1j}]
)
def test_values_between_samples(options: Any) -> None:
    positions, values = AT, options.pop("fp", np.cos(AT))
    x = da.from_array(X, chunks=(5, 2))
    expected = np.interp(X, positions, values, **options)
    lazy = da.from_array(positions, chunks=5), da.from_array(values, chunks=4)
    for samples in ((positions, values), lazy):
        result = np.interp(x, *samples, **options)
        assert isinstance(result, da.Array)
        assert ("interp", "dask_coop") in calls()
        assert "interp" in {r.operation for r in dc.explain(result) if r.served_by == "dask_coop"}
        np.testing.assert_array_equal(result.compute(), expected, strict=True)
    np.testing.assert_array_equal(np.interp(X, *lazy, **options).compute(), expected)


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.5.0", reason="NumPy 2.5 has descending="
)
def test_numpys_sorts_descend() -> None:
    x = da.from_array(X, chunks=(5, 2))
    call: Any
    for call in (
        lambda x: np.sort(x, 0, descending=True),
        lambda x: np.argsort(x, 0, stable=True, descending=True),
    ):
        np.testing.assert_array_equal(call(x).compute(), call(X))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.astype(x, "f4"),
        lambda x: np.copy(x),
        lambda x: np.matrix_transpose(x),
        lambda x: np.linalg.matrix_transpose(x),
        lambda x: np.linalg.matmul(x, x.T),
        lambda x: np.linalg.outer(x[:, 0], x[:, 1]),
        lambda x: np.linalg.tensordot(x, x, axes=([0], [0])),
    ],
)
def test_dasks_functions_of_other_names_are_lazy(call: Any) -> None:
    array = np.nan_to_num(X)
    result = call(da.from_array(array, chunks=(5, 2)))
    assert isinstance(result, da.Array)
    np.testing.assert_allclose(result.compute(), call(array))


def test_a_size_needs_no_elements() -> None:
    x = da.ones((3, 4), chunks=2).map_blocks(_fail, dtype="f8", meta=np.empty((0, 0)))
    assert (np.size(x), np.size(x, 1)) == (12, 4)


def test_what_numpy_computes_in_memory_is_told() -> None:
    x = da.from_array(WHOLE, chunks=(5, 2))
    match = (
        r"numpy\.setdiff1d computes its arrays of 192 B in memory: dask\.array has no setdiff1d; "
    )
    match += r"dask_coop\.unique and dask_coop\.isin are lazy"
    with pytest.warns(dc.FallbackWarning, match=match) as told:
        found = np.setdiff1d(x[:, 0], x[:, 1])
    assert [warning.filename for warning in told] == [__file__]
    np.testing.assert_array_equal(found, np.setdiff1d(WHOLE[:, 0], WHOLE[:, 1]))
    assert calls() == {("setdiff1d", "NumPy")}
    with pytest.warns(dc.FallbackWarning, match=r"numpy\.linalg\.det .* da\.map_blocks applies"):
        assert np.linalg.det(x[:5]) == np.linalg.det(WHOLE[:5])


def test_what_ours_refuse_numpy_computes_and_says_why() -> None:
    fields = np.array([(2, 1.0), (1, 3.0)], [("a", "i4"), ("b", "f8")])
    with pytest.warns(dc.FallbackWarning, match=r"numpy\.sort .* take one of its fields"):
        found = np.sort(da.from_array(fields, chunks=1))
    np.testing.assert_array_equal(found, np.sort(fields))
    with pytest.warns(dc.FallbackWarning, match="takes one axis"):
        norm = np.linalg.vector_norm(da.from_array(WHOLE, chunks=5), ord=1)
    assert norm == np.abs(WHOLE).sum()
    # What NumPy raises is raised, and what is wrong of an axis is found before.
    x = da.from_array(X, chunks=5)
    with pytest.raises(np.exceptions.AxisError):
        np.sort(x, axis=2)
    with (
        pytest.warns(dc.FallbackWarning, match="out of bounds"),
        pytest.raises(ValueError, match="out of bounds"),
    ):
        np.partition(x, 12, axis=0)


def test_nothing_is_computed_in_memory_where_that_is_refused() -> None:
    x = da.ones(4, chunks=2).map_blocks(_fail, dtype="f8", meta=np.empty(0))
    with (
        dask.config.set({"coop.fallback": "raise"}),
        pytest.raises(dc.Refused, match=r"numpy\.convolve computes .* da\.map_overlap"),
    ):
        np.convolve(x, [1, 2])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("put", ([0], 7)),
        ("place", (X > 0, [7])),
        ("putmask", (X > 0, 7)),
        ("copyto", (7,)),
        ("fill_diagonal", (7,)),
        ("put_along_axis", (np.zeros((1, 5), "i8"), 7, 0)),
    ],
)
def test_what_writes_to_a_lazy_array_is_refused(name: str, arguments: Any) -> None:
    x = da.from_array(X, chunks=5)
    match = rf"numpy\.{name} would write to a copy, .* x\[index\] = values"
    with pytest.raises(dc.Refused, match=match):
        getattr(np, name)(x, *arguments)
    array = np.zeros(4)
    with pytest.warns(dc.FallbackWarning, match=r"numpy\.copyto computes"):
        np.copyto(array, da.ones(4, chunks=2))
    assert array.sum() == 4


def test_names_of_dask_array_stay_as_they_were() -> None:
    assert not any(hasattr(da, name) for name in ("sort", "argsort", "interp", "lexsort"))


# Inside tasks.


def _fail(block: Any) -> Any:
    raise AssertionError("computed")

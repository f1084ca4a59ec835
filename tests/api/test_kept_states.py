"""States that are stored and combined, against the same function of the whole array."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
from conftest import to_chunks
from hypothesis import assume, given
from hypothesis import strategies as st
from support.strategies import REAL, arrays, shapes

import dask_coop as dc
from dask_coop.api.monoids.states import FUNCTIONS

#: The arguments that a function needs.
NEEDED: dict[str, dict[str, Any]] = {
    "moment": {"order": 3},
    "histogram": {"bins": np.linspace(-5, 5, 7)},
}

#: Estimates have tests of their own.
EXACT = FUNCTIONS.keys() - {"approx_nunique", "quantile", "nanquantile"}

WITH_EXTREMA = {"min", "max", "nanmin", "nanmax", "ptp", "describe"}
REAL_ONLY = WITH_EXTREMA | {"moment", "skew", "kurtosis", "histogram"}


def flat(result: Any) -> list[Any]:
    """Return the arrays of a result, computed, on the host."""
    results = result if isinstance(result, tuple) else (result,)
    return [x.get() if hasattr(x, "get") else np.asarray(x) for x in dask.compute(*results)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(
    case=arrays(shape=shapes(1), dtypes=REAL),
    name=st.sampled_from(sorted(EXACT)),
    share=st.floats(0, 1),
    whole=st.booleans(),
)
def test_yesterday_and_today_are_both(
    xp: Any, tmp_path_factory: Any, case: Any, name: str, share: float, whole: bool
) -> None:
    array, chunks = case
    axis, at = None if whole else 0, int(share * len(array))
    options = NEEDED.get(name, {})
    function, parts = getattr(dc, name), (array[:at], array[at:])
    takes = "biuf" if name in REAL_ONLY else "biufc"
    assume(array.dtype.kind in takes and (name, array.dtype.kind) != ("ptp", "b"))
    assume(name not in WITH_EXTREMA or all(part.size for part in parts))
    expected = flat(function(to_chunks(xp, array, chunks), axis=axis, **options))
    states = [
        dc.reduce(to_chunks(xp, part, -1), name, axis, return_state=True, options=options)
        for part in parts
    ]
    combined = dc.combine(states).compute()
    path = tmp_path_factory.mktemp("states") / "both"
    combined.save(path)
    found = flat(dc.ReductionState.load(path).result())
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        scale = float(np.nanmax(np.abs(np.append(array[np.isfinite(array)], 1)).astype("f8")))
        eps = 1e-9 if a.dtype.kind != "f" else max(1e-9, 4 * float(np.finfo(a.dtype).eps))
        power = 3 if name == "moment" else 2
        np.testing.assert_allclose(a, b, rtol=eps, atol=1e-9 * min(scale, 1e90) ** power)


def test_states_merge_in_their_order() -> None:
    rng = np.random.default_rng(0)
    states = [
        dc.reduce(rng.normal(size=(5, 3)), "skew", 0, return_state=True).compute() for _ in range(3)
    ]
    left = dc.combine([dc.combine(states[:2]), states[2]])
    at_once = dc.combine(states)
    for a, b in zip(left.fields, at_once.fields, strict=True):
        assert a.tobytes() == b.tobytes()
    assert left.result().tobytes() == pickle.loads(pickle.dumps(at_once)).result().tobytes()
    assert not np.array_equal(left.result(), left.result(bias=False))


def test_unlike_states_are_refused() -> None:
    x = da.ones((4, 3), chunks=2)

    def state(*args: Any, x: Any = x, **options: Any) -> Any:
        return dc.reduce(x, *args, return_state=True, options=options).compute()

    mean = state("mean", 0)
    for other, what in (
        (state("var", 0), "function"),
        (state("mean", 0, x=x.astype("f4")), "dtype"),
        (state("mean", 0, x=x[:, :2]), "shape"),
        (state("mean", -2), "options"),
    ):
        with pytest.raises(ValueError, match=f"states of unlike {what} do not combine"):
            dc.combine([mean, other])
    with pytest.raises(ValueError, match="combine takes one state at least"):
        dc.combine([])
    with pytest.raises(TypeError, match="combine takes states, got float"):
        dc.combine([1.0])
    with pytest.raises(TypeError, match="the state is another with another axis"):
        mean.result(axis=1)


def test_what_has_no_state_is_refused() -> None:
    x = da.ones((4, 3), chunks=2)
    for refused, array, name, options in (
        ("there are no states of median", x, "median", {}),
        ("has no state", x, "histogram", {"bins": 3}),
        (
            "no states of sums of weights",
            x,
            "histogram",
            {"bins": [0, 1], "weights": [[1] * 3] * 4},
        ),
        ("has a state if bins is known", x, "histogram", {"bins": da.ones(3)}),
        ("arguments that can be stored", x, "sum", {"where": slice(3)}),
        ("MaskedArray", da.ma.masked_less(x, 0), "sum", {}),
        ("its places are those of one array", x.astype("c8"), "min", {}),
        ("describe has one", x.astype("m8[s]"), "sum", {}),
    ):
        with pytest.raises((TypeError, ValueError), match=refused):
            dc.reduce(array, name, return_state=True, options=options)
    with pytest.raises(TypeError, match="got str 'sum'"):
        dc.reduce(x, "sum")
    with pytest.raises(TypeError, match="no out with return_state=True"):
        dc.reduce(x, "sum", return_state=True, out=x)
    with pytest.raises(TypeError, match="with the name of a reduction, such as 'sum'; got add"):
        dc.reduce(x, np.add, return_state=True)


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = dc.reduce(da.ones(3), "sum", return_state=True).compute()
    state.save(path)
    assert np.load(path, allow_pickle=False).files == ["state", "field0", "field1"]
    with np.load(path) as stored:
        fields, header = dict(stored), json.loads(str(stored["state"]))

    def load(changed: Any, **arrays: Any) -> Any:
        np.savez(file := io.BytesIO(), **fields | {"state": json.dumps(changed)} | arrays)
        path.write_bytes(file.getvalue())
        return dc.ReductionState.load(path)

    assert load(header).result() == 3
    with pytest.raises(ValueError, match="in version 2; this release of dask_coop reads version 1"):
        load(header | {"version": 2})
    with pytest.raises(ValueError, match="holds no state"):
        load([])
    with pytest.raises(ValueError, match="holds no state"):
        load(header, field0=np.array([{}], object))
    with pytest.raises(ValueError, match="is of another release"):
        load(header, field0=np.array(3)).result()
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="holds no state"):
        dc.ReductionState.load(path)


def test_arrays_with_labels_have_states() -> None:
    x = xarray.DataArray(da.ones((4, 3), chunks=2), dims=("a", "b"))
    assert dc.reduce(x, "sum", 0, return_state=True).compute().result().tolist() == [4, 4, 4]

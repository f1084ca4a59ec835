"""Zarr's own strategies: what it stores and how it is indexed, held to what it reads."""

from __future__ import annotations

import warnings
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from zarr.storage import LocalStore, MemoryStore

import dask_coop as dc
from dask_coop.files.stored import StoredArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from zarr.testing import strategies

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

#: A few seconds of each; many in the thorough profile.
EXAMPLES = min(10, settings().max_examples) if settings().derandomize else 500
quick = settings(
    max_examples=EXAMPLES,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


def same(ours: Any, theirs: Any) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    # Bit by bit: there are NaNs and NaTs of all kinds.
    assert ours.tobytes() == theirs.tobytes()


@quick
@given(st.data())
def test_arrays_and_indices(data: st.DataObject) -> None:
    array = data.draw(strategies.arrays(attrs=st.none()))
    stored = StoredArray(array, 4)
    same(stored[...], array[...])
    index = data.draw(strategies.basic_indices(shape=array.shape))
    same(stored[index], array[index])


@quick
@given(st.data())
def test_arrays_by_any_chunks(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        store = data.draw(st.sampled_from([MemoryStore({}), LocalStore(folder)]))
        array = data.draw(strategies.arrays(attrs=st.none(), stores=st.just(store)))
        chunks = tuple(data.draw(st.integers(1, max(1, n))) for n in array.shape)
        x = dc.from_zarr(array, chunks=chunks)
        whole = array[...]
        same(x.compute(scheduler="threads"), whole)
        index = data.draw(strategies.basic_indices(shape=array.shape))
        same(x[index].compute(scheduler="threads"), np.asarray(whole[index], whole.dtype))

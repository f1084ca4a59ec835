"""On which GPU of a `Node` chunks are made that have no input."""

from __future__ import annotations

import pytest

from dask_coop.node.placement import deal


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("m", [1, 2, 7, 64])
def test_the_chunks_of_a_name_are_dealt_in_contiguous_runs(n: int, m: int) -> None:
    keys = [(name, i, j) for name in "ab" for i in reversed(range(m)) for j in range(2)]
    dealt = deal(keys, n)
    for name in "ab":
        places = [dealt[name, i, j] for i in range(m) for j in range(2)]
        assert places == sorted(places)
        assert set(places) <= set(range(n))
        counts = [places.count(p) for p in range(n)]
        assert max(counts) - min(counts) <= 1


def test_other_keys_are_dealt_in_their_order() -> None:
    keys = ["d", "c", ("x", 0), "b", "a", ()]
    assert deal(keys, 2) == {"d": 0, "c": 0, "b": 1, "a": 1, ("x", 0): 0, (): 0}


def test_indices_without_an_order_keep_the_graphs() -> None:
    assert list(deal([("x", 1), ("x", "a"), ("x", 0)], 3).values()) == [0, 1, 2]

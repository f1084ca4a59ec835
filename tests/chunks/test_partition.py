"""Stretches: each element is one block's, in the order of a scan, about as many for each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_coop.chunks.cupy.partition import GRAIN, cut

SIZES = st.lists(
    st.sampled_from([0, 1, 7, 1023, 1024, 1025, 5000, 100_003]), min_size=1, max_size=9
)


@given(sizes=SIZES, blocks=st.integers(1, 40), reverse=st.booleans())
def test_stretches_are_the_chunks_in_order(sizes: list[int], blocks: int, reverse: bool) -> None:
    numbers = tuple(range(5, 5 + 3 * len(sizes), 3))
    made = cut(numbers, tuple(sizes), blocks, reverse)
    assert made.chunk.tolist() == sorted(made.chunk.tolist())
    assert (made.stretches["chunk"] == np.asarray(numbers)[made.chunk]).all()
    for i, size in enumerate(sizes):
        own = made.stretches[made.begin[i] : made.begin[i + 1]]
        # Every chunk has one, for its state.
        assert len(own)
        assert (made.chunk[made.begin[i] : made.begin[i + 1]] == i).all()
        own = own[::-1] if reverse else own
        assert own["first"].tolist() == [0, *np.cumsum(own["n"])[:-1]]
        assert own["n"].sum() == size
        if not reverse:
            assert (own["first"] % GRAIN == 0).all()


@given(sizes=SIZES, blocks=st.integers(1, 40))
def test_blocks_share_the_stretches_about_equally(sizes: list[int], blocks: int) -> None:
    made = cut(tuple(range(len(sizes))), tuple(sizes), blocks, False)
    assert len(made.block) == blocks + 1
    assert (made.block[0], made.block[-1]) == (0, len(made.stretches))
    assert (np.diff(made.block) >= 0).all()
    taken = [
        made.stretches["n"][a:b].sum() for a, b in zip(made.block[:-1], made.block[1:], strict=True)
    ]
    share = -(-sum(sizes) // blocks)
    assert max(taken) < share + 2 * GRAIN


def test_equal_shares_of_whole_grains_are_equal() -> None:
    made = cut((0, 1), (1 << 20, 1 << 20), 64, False)
    assert made.stretches["n"].tolist() == [1 << 15] * 64
    assert made.block.tolist() == list(range(65))

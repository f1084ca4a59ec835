"""What the host does for a scan in two halves over several GPUs: a launch made of NumPy's loops."""

from __future__ import annotations

import pytest
from support.processes import printed


def test_stretches_of_all_gpus_find_their_states_and_bases() -> None:
    pytest.importorskip("cuda.bindings.driver")
    pytest.importorskip("cuda.core")
    # Chunks that have moved between the halves are reduced again.
    assert printed("-m", "support.host_cupy.launches", timeout=120).split() == ["10", "10"]

"""What keeps several GPUs from getting one launch, each reason by itself, without a GPU."""

from __future__ import annotations

import json

import pytest
from support.processes import printed

#: Asks `_objection` after each change, in a process of its own, with GPUs that are made up.
SCRIPT = """
import json, os, sys
# Dask, which looks for CuPy, before there is one.
from dask_coop.cuda.devices import Device
from types import ModuleType, SimpleNamespace
cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
cuda.runtime = SimpleNamespace()
cuda.nvtx = SimpleNamespace(available=False)
cuda.MemoryHook = object
cupy.cuda = cuda
sys.modules.update({"cupy": cupy, "cupy.cuda": cuda})
from dask_coop.cuda import team
team.device = lambda ordinal: gpus[ordinal]
said = []
for change in sys.argv[1:]:
    connected = {(a, b) for a in range(20) for b in range(20)}
    gpus = [Device("sm_90", 132, 232448, True)] * 20
    team.attribute = lambda ordinal, name: 1
    team._is_sanitized = lambda: False
    os.environ.pop("CUDA_LAUNCH_BLOCKING", None)
    ordinals = (0, 1, 3)
    exec(change)
    said.append(team._objection(ordinals, connected))
print(json.dumps(said))
"""

CASES = {
    "": "",
    "ordinals = (2,)": "",
    "ordinals = (2,); os.environ['CUDA_LAUNCH_BLOCKING'] = '1'": "",
    "ordinals = (2,); team.attribute = lambda ordinal, name: 0": "GPU 2 takes no cooperative",
    "ordinals = tuple(range(17))": "a launch takes up to 16 GPUs, not 17",
    "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'": "CUDA_LAUNCH_BLOCKING lets one GPU wait for",
    "os.environ['CUDA_LAUNCH_BLOCKING'] = '0'": "",
    "team._is_sanitized = lambda: True": "compute-sanitizer runs kernels one at a time",
    "gpus[3] = Device('sm_80', 108, 166912, False)": (
        "the GPUs differ: sm_80 with 108 processors, sm_90 with 132 processors"
    ),
    "gpus[2] = Device('sm_80', 108, 166912, False)": "",
    "team.attribute = lambda ordinal, name: ordinal != 3": "GPU 3 takes no cooperative",
    "connected = set()": "GPU 0 cannot reach the memory of GPU 1",
    "connected.remove((3, 1))": "GPU 3 cannot reach the memory of GPU 1",
    "connected.remove((3, 2))": "",
}


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """Return what is said after each change."""
    pytest.importorskip("cuda.bindings.driver")
    pytest.importorskip("cuda.core")
    return dict(zip(CASES, json.loads(printed("-c", SCRIPT, *CASES)), strict=True))


@pytest.mark.parametrize("change", CASES)
def test_what_keeps_gpus_apart_is_said(change: str, said: dict[str, str]) -> None:
    assert said[change].startswith(CASES[change])
    assert bool(said[change]) == bool(CASES[change])

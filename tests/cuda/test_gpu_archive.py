"""With an archive, the first calls of a new process on a GPU compile nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import printed

pytest.importorskip("cuda.core")

from benchmarks.systems.first import CALLS
from dask_coop.chunks.cupy.program_sets import shipped
from dask_coop.cuda import compiler
from dask_coop.cuda.devices import device
from dask_coop.cuda.sharing import for_each

pytestmark = pytest.mark.gpu

#: Makes calls with an archive and an empty cache; prints the programs that it compiles.
CALL = """
import sys
from pathlib import Path
import cupy, dask.array as da, numpy as np
import dask, dask_coop as dc
from dask_coop.cuda import archive, compiler
archive.file = lambda: Path(sys.argv[1])
compile_program = compiler.compile_program
def spied(source, arch):
    print(call, source)
    return compile_program(source, arch)
compiler.compile_program = spied
x = da.from_array(
    cupy.random.random((1024, 1024), "f4"), chunks=(512, 1024), name=False, asarray=False
)
labels = np.arange(1024) % 12
for call in sys.argv[2:]:
    dask.compute(eval(call), scheduler="synchronous")
"""


def test_common_calls_compile_nothing(tmp_path: Path, cp: Any) -> None:
    gpu = device(0)
    sources = shipped(np.dtype("f4"), gpu)
    for_each(lambda source: compiler.cached(source, gpu.arch), sources, threading.Event())
    path = tmp_path / "programs.zip"
    compiler.write_archive(path, [(source, gpu.arch) for source in sources])
    # Distinct integers are of a dtype that archives do not have.
    calls = [call for name, call in CALLS.items() if name != "unique"]
    assert printed("-c", CALL, path, *calls, DASK_COOP_CACHE=tmp_path / "empty") == ""


def test_without_one_they_compile(tmp_path: Path, cp: Any) -> None:
    said = printed("-c", CALL, tmp_path / "none.zip", "dc.sum(x)", DASK_COOP_CACHE=tmp_path)
    assert "reduce_" in said

"""Every kernel compiles, for every architecture, without a GPU."""

from __future__ import annotations

import io
import re
from concurrent.futures import ThreadPoolExecutor

import cuda.core
import numpy as np
import pytest

from dask_coop.chunks import catalogue
from dask_coop.cuda import compiler
from dask_coop.cuda.programs import histogram
from dask_coop.monoids import MOMENTS, SUM, bind

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
EVERYTHING = catalogue.everything()
SHARES = 8


def compile_all(sources: list[str], arch: str) -> None:
    assert cuda.core.__version__
    with ThreadPoolExecutor(2) as pool:
        cubins = list(pool.map(lambda source: compiler.compile_program(source, arch), sources))
    assert all(cubin.startswith(b"\x7fELF") for cubin in cubins)


@pytest.mark.parametrize("header", sorted(p.name for p in compiler.kernels_folder().glob("*.cuh")))
def test_a_header_compiles_alone(header: str) -> None:
    compile_all([f'#include "{header}"\nextern "C" __global__ void entry() {{}}'], "sm_75")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_common_kernels_compile(arch: str) -> None:
    compile_all(catalogue.common((np.dtype("f4"),)), arch)


@pytest.mark.parametrize("share", range(SHARES))
def test_every_kernel_compiles(share: int) -> None:
    assert len(EVERYTHING) > 1000
    compile_all(EVERYTHING[share::SHARES], "sm_90")


@pytest.mark.parametrize("name", ["f4", "f8"])
def test_the_main_kernels_do_not_spill(name: str) -> None:
    dtype = np.dtype(name)
    total, moments = bind(SUM, dtype, dtype, "sum"), bind(MOMENTS, dtype, dtype, "describe")
    sources = [*catalogue.reductions(total), *catalogue.scans(total)]
    sources += [*catalogue.reductions(moments), histogram.count(dtype, dtype, True)]
    for source in sources:
        report = io.StringIO()
        compiler.compile_program(source, "sm_90", report=report)
        found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report.getvalue())
        assert found == [("0", "0")], source


def test_the_cache_serves_what_was_compiled(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASK_COOP_CACHE", str(tmp_path))
    source = histogram.count(np.dtype("f4"), np.dtype("f4"), True)
    first = compiler.load_or_compile(source, "sm_90")
    monkeypatch.setattr(compiler, "compile_program", None)
    assert compiler.load_or_compile(source, "sm_90") == first


def test_an_edited_header_is_compiled_anew(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASK_COOP_CACHE", str(tmp_path))
    compiled: list[str] = []

    def compile_program(source: str, arch: str) -> bytes:
        compiled.append(source)
        return b"cubin"

    monkeypatch.setattr(compiler, "compile_program", compile_program)
    compiler.load_or_compile("source", "sm_90")
    compiler.load_or_compile("source", "sm_90")
    monkeypatch.setattr(compiler, "_headers_digest", lambda: b"another")
    compiler.load_or_compile("source", "sm_90")
    assert len(compiled) == 2

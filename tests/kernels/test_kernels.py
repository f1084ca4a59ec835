"""Every kernel compiles, for every architecture, without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import compiled
from support.compiled import THOROUGH, compile_all, spills

from dask_coop.algebra.monoids import MIN, MOMENTS, REPRODUCIBLE_SUM, SUM
from dask_coop.algebra.operation import bind, compensated
from dask_coop.chunks.cupy import program_sets, programs_list
from dask_coop.cuda import compiler
from dask_coop.cuda.devices import usual
from dask_coop.cuda.programs import histogram, reduce

#: Without sm_90, for which every kernel is compiled.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120")
COMMON = ("f4", "f8", "i4", "i8", "u1")
EVERYTHING = program_sets.everything()
#: Every 32nd one, of a kernel or dtype other than its neighbours'; or all, if asked for.
CHECKED = EVERYTHING[:: 1 if THOROUGH else 32]
PARTS = 6
#: Architectures with limits of their own, each with one dtype; or all pairs, if asked for.
LIMITS = [*zip(ARCHITECTURES, ("f4", "f8", "f4", "i4", "u1", "f4"), strict=True)]


def common(arch: str, name: str) -> list[str]:
    dtype = np.dtype(name)
    sources = program_sets.common((dtype,), usual(arch))
    if name == "f4":
        sources += [*programs_list.transposes(dtype), *programs_list.matmuls(dtype)]
    return sources


@pytest.mark.parametrize("header", sorted(p.name for p in compiler.kernels_folder().glob("*.cuh")))
def test_a_header_compiles_alone(header: str) -> None:
    compile_all([f'#include "{header}"\nextern "C" __global__ void entry() {{}}'], "sm_75")


@pytest.mark.parametrize(("arch", "name"), product(ARCHITECTURES, COMMON) if THOROUGH else LIMITS)
def test_the_common_kernels_compile(arch: str, name: str) -> None:
    compile_all(common(arch, name), arch)


@pytest.mark.parametrize("arch", ["sm_75", "sm_100"])
def test_multichunk_launches_compile(arch: str) -> None:
    compile_all([*programs_list.multichunks(np.dtype("f4"), usual(arch))], arch)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_compiles(part: int) -> None:
    compile_all(CHECKED[part::PARTS], "sm_90")


def test_every_kernel_is_more_than_the_common_ones() -> None:
    assert len(EVERYTHING) > 1000
    for name in COMMON:
        assert set(EVERYTHING) > set(common("sm_90", name))


def test_volta_compiles_where_the_compiler_knows_it() -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    if 70 not in nvrtc.nvrtcGetSupportedArchs()[1]:
        pytest.skip("this NVRTC is of CUDA 13, which has dropped sm_70")
    compile_all(common("sm_70", "f4"), "sm_70")


def main_kernels(arch: str, dtype: np.dtype[np.generic]) -> list[str]:
    """Return the programs that the benchmarks time."""
    total = compensated(bind(SUM, dtype, dtype, "sum"))
    reduced = (total, bind(MIN, dtype, dtype, "min"), bind(MOMENTS, dtype, dtype, "describe"))
    sources = [*chain.from_iterable(map(programs_list.reductions, reduced))]
    if dtype.kind == "f":
        digits = bind(REPRODUCIBLE_SUM, dtype, dtype, "sum")
        name, layout = programs_list.functor(digits), programs_list.layout(digits)
        sources += [make(name, dtype, layout) for make in (reduce.rows, reduce.long_rows)]
    sources += programs_list.scans(total, usual(arch))
    # Edges are compared in the dtype that uniform bins have; weights of other dtypes than these are
    # converted by the same instructions. Limits beyond 2**53, of which no benchmark is, take four
    # registers more than there are.
    edge = "float" if dtype == "f4" else "double"
    other = re.compile(
        rf"using E = (?!{edge};)|const (?!(?:float|double)\*)[^,*]*\* weights|LimitedBins"
    )
    counts = programs_list.histograms(dtype, usual(arch))
    sources += [source for source in counts if not other.search(source)]
    launches = programs_list.multichunks(dtype, usual(arch))
    sources += [source for source in launches if "multichunk_histogram<" in source]
    return list(dict.fromkeys(sources))


# Optimised in full, as they are when they run, which takes its time.
@pytest.mark.parametrize(
    ("arch", "name"),
    [
        *product(["sm_90"], ["f4", "f8", "i4", "i8"] if THOROUGH else ["f4", "f8"]),
        *product(["sm_80"], ["f4", "f8"] if THOROUGH else []),
    ],
)
def test_the_main_kernels_do_not_spill(arch: str, name: str) -> None:
    sources = main_kernels(arch, np.dtype(name))
    spilling = spills(sources if THOROUGH else sources[name == "f8" :: 2], arch)
    assert not spilling, "\n".join(f"{found}:\n{source}" for source, found in spilling.items())


SPILLING = """extern "C" __global__ void entry(int* x, int n) {
  int kept[64];
  for (int i = 0; i < 64; ++i) kept[i] = x[i];
  for (int i = 0; i < n; ++i) x[i] = kept[x[i] & 63];
}
"""


def test_what_spills_is_seen_also_among_others() -> None:
    sources = [histogram.lists(), SPILLING, SPILLING.replace("64", "65")]
    assert spills(sources, "sm_90").keys() == set(sources[1:])


def test_what_was_compiled_is_remembered_until_a_header_or_an_option_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda.core import Program

    monkeypatch.setattr(compiled, "THOROUGH", False)
    calls: list[str] = []

    def compile_program(unit: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(unit)
        return Program(unit, *args, **kwargs)

    monkeypatch.setattr("cuda.core.Program", compile_program)
    options = replace(compiler._options("sm_90"), ptxas_options="-v")
    first = compiled.report_of(SPILLING, options, tmp_path)
    assert "256 bytes stack frame" in first
    assert compiled.report_of(SPILLING, options, tmp_path) == first
    assert len(calls) == 1
    compiled.report_of(SPILLING, replace(compiler._options("sm_80"), ptxas_options="-v"), tmp_path)
    assert len(calls) == 2
    monkeypatch.setattr(compiler, "_headers_digest", lambda: b"another")
    compiled.report_of(SPILLING, options, tmp_path)
    assert len(calls) == 3
    for _ in range(2):
        with pytest.raises(Exception, match="nonsense"):
            compiled.report_of("nonsense", options, tmp_path)


def test_the_cache_serves_what_was_compiled(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASK_COOP_CACHE", str(tmp_path))
    source = histogram.lists()
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

"""How loops are compiled, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

INNER = """from dask_coop.chunks.numpy.jit import jit, jit_inner
@{decorator}
def number():
    return {number}
"""
OUTER = """from dask_coop.chunks.numpy.jit import jit
from inner import number
@jit
def twice():
    return 2 * number()
print(twice(), sum(twice.stats.cache_hits.values()))
"""


@pytest.mark.parametrize("decorator", ["jit", "jit_inner"])
def test_what_is_kept_is_compiled_anew_when_a_module_that_it_calls_changes(
    tmp_path: Path, decorator: str
) -> None:
    package = Path(__file__).parents[2]
    found = filter(None, (str(package), str(tmp_path), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(found)}
    (tmp_path / "outer.py").write_text(OUTER)

    def run(number: int) -> str:
        text = INNER.format(decorator=decorator, number=number)
        if not (tmp_path / "inner.py").exists() or (tmp_path / "inner.py").read_text() != text:
            (tmp_path / "inner.py").write_text(text)
        command = [sys.executable, "-c", "import outer"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert run(3) == "6 0\n"
    assert run(3) == "6 1\n"
    assert run(10) == "20 0\n"

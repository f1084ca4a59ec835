"""How loops are compiled, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


RACE = """import sys, time
from dask_coop.chunks.numpy.jit import jit
@jit
def twice(x):
    return x + x
value, before_index, before_code = map(eval, sys.argv[1:])
kept = twice._cache._cache_file
save_index, save_code = kept._save_index, kept._save_data
kept._save_index = lambda found: (time.sleep(before_index), save_index(found))
kept._save_data = lambda name, data: (time.sleep(before_code), save_code(name, data))
print(twice(value))
"""


def test_processes_that_compile_at_the_same_time_keep_their_own_code(tmp_path: Path) -> None:
    script = tmp_path / "race.py"
    script.write_text(RACE)
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path)}

    def start(*arguments: Any) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), *map(repr, arguments)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    # One has the last word in the index, and the other in a file that both might choose.
    processes = [start(3, 4, 4), start(3.0, 6, 0)]
    assert [each.communicate()[0] for each in processes] == ["6\n", "6.0\n"]
    assert [start(x, 0, 0).communicate()[0] for x in (3, 3.0)] == ["6\n", "6.0\n"]

"""How loops are compiled, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import beside, printed, python

pytest.importorskip("numba")

REPOSITORY = Path(__file__).parents[2]

INNER = """from dask_coop.compiled.jit import jit, jit_inner
@{decorator}
def number():
    return {number}
"""
OUTER = """from dask_coop.compiled.jit import jit
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
from dask_coop.compiled.jit import jit
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
    environment = beside(NUMBA_CACHE_DIR=tmp_path)

    def start(*arguments: Any) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), *map(repr, arguments)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    # One has the last word in the index, and the other in a file that both might choose.
    processes = [start(3, 4, 4), start(3.0, 6, 0)]
    assert [each.communicate()[0] for each in processes] == ["6\n", "6.0\n"]
    assert [start(x, 0, 0).communicate()[0] for x in (3, 3.0)] == ["6\n", "6.0\n"]


KEEPS = """import os, sys, warnings
from pathlib import Path
import numba
from dask_coop.compiled import jit
numba.config.CACHE_DIR = os.environ.get("NUMBA_CACHE_DIR", "")
# As where the package lies in a folder that only others can write to.
access = os.access
jit.os.access = lambda path, mode: mode != os.W_OK and access(path, mode)
numba.core.caching.CacheImpl._locator_classes.remove(numba.core.caching.InTreeCacheLocator)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    loop, other = jit.jit(jit._stamp.__wrapped__), jit.jit(jit._objection.__wrapped__)
print(loop.stats.cache_path or "none")
print(*(each.message for each in said), sep="\\n")
"""


def keeps(folder: Path, **environment: str) -> list[str]:
    """Return where a process keeps loops, and its warnings, given the environment and no other."""
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), **environment}
    command = [sys.executable, "-c", KEEPS]
    done = subprocess.run(command, env=given, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_loops_are_kept_in_the_users_cache_or_where_it_is_said(tmp_path: Path) -> None:
    for name, below in (
        ("XDG_CACHE_HOME", "numba"),
        ("HOME", ".cache/numba"),
        ("NUMBA_CACHE_DIR", ""),
    ):
        where, said, _ = keeps(tmp_path, **{name: str(tmp_path / name)})
        assert where.startswith(str(tmp_path / name / below))
        assert said == ""


def test_loops_are_not_kept_where_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    where, said, _ = keeps(tmp_path, NUMBA_CACHE_DIR=str(tmp_path))
    assert where == "none"
    assert f"compiled loops are not kept: everybody may write to {tmp_path}." in said
    assert "set NUMBA_CACHE_DIR" in said


def test_a_user_without_a_name_and_a_home_is_warned_and_gets_no_folder(tmp_path: Path) -> None:
    # ~ is then a name like any other, which is what Numba would call the folder.
    where, said, _ = keeps(tmp_path, HOME="~")
    assert where == "none"
    assert "compiled loops are not kept: the user has no home folder." in said
    assert list(tmp_path.iterdir()) == []


def test_machine_code_that_is_replaced_is_removed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = "from dask_coop.compiled.jit import jit\n@jit\ndef one():\n    return 1\none()\n"
    folder = tmp_path / "kept"

    def files(lines: str) -> set[Path]:
        script.write_text(lines + text)
        printed(script, NUMBA_CACHE_DIR=folder)
        return {each for each in folder.rglob("*.nb?")}

    first = files("")
    assert len(first) == 2
    for path in first:
        os.utime(path, (1, 1))
    # The function moves down a line, so that its index has another name.
    second = files("\n")
    assert len(second) == 2
    assert not first & second


FORGED = """import os, pickle, sys
from pathlib import Path
import numba, numpy as np
from numba.core.caching import UserProvidedCacheLocator
from dask_coop.cuda import copies_numba as copies
class Command:
    def __reduce__(self):
        return os.mkdir, (sys.argv[1],)
loop = copies.store
code = loop.py_func.__code__
below = UserProvidedCacheLocator.get_suitable_cache_subpath(code.co_filename)
folder = Path(os.environ["NUMBA_CACHE_DIR"], below)
folder.mkdir(exist_ok=True)
version = f"py{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}"
index = folder / f"copies_numba.store-{code.co_firstlineno}.{version}.nbi"
index.write_bytes(pickle.dumps(numba.__version__) + pickle.dumps((Command(), {})))
source, target = np.arange(100), np.zeros(100, int)
loop(target.ctypes.data, source.ctypes.data, source.nbytes)
assert (source == target).all()
"""


def test_a_forged_index_runs_nothing_in_the_loops_of_copies(tmp_path: Path) -> None:
    pytest.importorskip("llvmlite")
    folder, ran = tmp_path / "folder", tmp_path / "ran"
    folder.mkdir()

    def run(mode: int) -> str:
        folder.chmod(mode)
        return python("-c", FORGED, ran, NUMBA_CACHE_DIR=folder).stderr

    said = run(0o777)
    assert not ran.exists()
    assert f"everybody may write to {folder}" in said
    # Where the folder is the user's own, the same index would run: it is where it is looked for.
    run(0o700)
    assert ran.exists()

"""What docs/verified.json counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_run
import pytest

FILES = {
    "test_cases.py": """
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_passes(n): pass

        def test_fails(): assert False

        @pytest.mark.skip
        def test_is_marked(): pass

        def test_skips(): pytest.skip("now")

        @pytest.fixture
        def absent(): pytest.skip("no fixture")

        def test_of_a_fixture(absent): pass

        @pytest.fixture
        def broken(): raise ValueError

        def test_of_a_broken_fixture(broken): pass
    """,
    "test_module.py": """
        import pytest

        pytest.importorskip("no_such_module")

        def test_is_never_seen(): pass
    """,
    "test_another_module.py": """
        import pytest

        pytest.skip("not here", allow_module_level=True)
    """,
}

COUNT = """
import json, sys
import pytest
from gpu_run import Outcome

outcome = Outcome()
pytest.main(sys.argv[1:], plugins=[outcome])
print("\\n" + json.dumps(outcome.counts))
"""


def counts(folder: Path, *options: str) -> dict[str, int]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    code = f"import sys; sys.path.insert(0, {str(Path(gpu_run.__file__).parent)!r})\n{COUNT}"
    command = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", *options, str(folder)]
    # Of a run within a run nothing may be left. Most of its time would be the plugins' imports.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("options", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "xdist"])
def test_every_outcome_counts_once(tmp_path: Path, options: list[str]) -> None:
    for name, text in FILES.items():
        lines = text.splitlines()
        (tmp_path / name).write_text("\n".join(line[8:] for line in lines))
    assert counts(tmp_path, *options) == {"passed": 3, "failed": 2, "skipped": 5}


@pytest.mark.parametrize("options", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "xdist"])
def test_a_file_that_does_not_import_counts_as_failed(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module")
    assert counts(tmp_path, *options) == {"passed": 0, "failed": 1, "skipped": 0}


def test_the_committed_page_shows_the_committed_entries() -> None:
    entries = json.loads(gpu_run.TARGET.read_text())
    assert gpu_run.TARGET.with_suffix(".md").read_text() == gpu_run.table(entries)


def test_random_cases_have_a_table_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "verified.json"
    monkeypatch.setattr(gpu_run, "TARGET", target)
    machine = {"date": "2026-11-22", "gpus": ["H200"], "driver": 1, "cuda": 12090, "cupy": "14"}
    gpu_run.add({**machine, "commit": "ab", "passed": 7, "failed": 0, "skipped": 1})
    fuzzed = {"commit": "abc", "seconds": 240, "processes": 14, "failures": {"scan": 2}}
    for scans in (10, 60_000):
        report = tmp_path / "report.json"
        cases = {"scan": scans, "truth": 50_000}
        report.write_text(json.dumps({**machine, **fuzzed, "cases": cases}))
        assert gpu_run.main(["--add", str(report)]) == 0
    assert len(json.loads(target.read_text())) == 2
    page = target.with_suffix(".md").read_text()
    assert "| 2026-11-22 | 1 x H200 | 1 | 12090 | 14 | ab | 7 | 0 | 1 |" in page
    assert "| abc | 240 | 14 | 110,000 | 2 |" in page
    assert "| 12090 | graph | 60,000 | 50,000 |" in page
    # Each engine of a run has a line.
    by = {"collective": {"scan": 7}, "graph": {"scan": 3, "truth": 50_000}}
    gpu_run.add({**machine, **fuzzed, "cases": cases, "engines": by})
    page = target.with_suffix(".md").read_text()
    assert "| 12090 | collective | 7 |  |\n| 12090 | graph | 3 | 50,000 |" in page


def test_what_the_sanitizer_said_has_a_table_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_run, "TARGET", tmp_path / "verified.json")
    machine = {"date": "2026-11-22", "gpus": ["H100"], "driver": 1, "cuda": 12090, "cupy": "14"}
    gpu_run.add({**machine, "commit": "ab", "passed": 7, "failed": 0, "skipped": 1})
    for memcheck in ("found something in groups", "clean"):
        outcome = {"memcheck": memcheck, "racecheck": "clean"}
        gpu_run.add({**machine, "commit": "abc", "seconds": 90, "sanitized": outcome})
    assert len(json.loads(gpu_run.TARGET.read_text())) == 2
    page = gpu_run.TARGET.with_suffix(".md").read_text()
    assert "| 2026-11-22 | 1 x H100 | 1 | 12090 | 14 | ab | 7 | 0 | 1 |" in page
    assert "| 14 | abc | 90 | clean | clean |" in page

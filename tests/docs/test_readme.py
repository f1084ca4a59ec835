"""What the README and docs/ say to type works, and what they point to is there."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from support.processes import REPOSITORY, beside

import dask_coop

README = REPOSITORY / "README.md"
PAGES = [README, *sorted((REPOSITORY / "docs").glob("**/*.md"))]


def blocks(page: Path, *languages: str) -> list[str]:
    """Return the fenced blocks of `page` in one of `languages`."""
    fenced = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for language, text in fenced if language in languages]


def run(*command: str, cwd: Path) -> str:
    """Run `command` with this checkout on its path; return what it prints."""
    done = subprocess.run(command, cwd=cwd, env=beside(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_ten_lines_are_ten_and_run(tmp_path: Path) -> None:
    (code,) = blocks(README, "python")
    assert len([line for line in code.splitlines() if line]) == 10
    code += "print(*dask.compute(counts.sum(), means.mean()))"
    printed = run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path)
    mean, std, low, high, smooth, total, counted, grouped = map(float, printed.split())
    # Statistics of uniform numbers in [0, 1).
    assert [mean, grouped] == pytest.approx([0.5, 0.5], abs=0.01)
    assert std == pytest.approx(12**-0.5, abs=0.01)
    assert [low, high] == pytest.approx([0.1, 0.9], abs=0.01)
    assert 0 < smooth < 1
    assert total == pytest.approx(4096 / 2, rel=0.01)
    assert counted == 4096**2


def test_functions_beside_those_of_other_libraries_are_there() -> None:
    table = README.read_text().partition("## Beside other libraries")[2].partition("\nTake ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    named = [name for _, ours, _ in rows for name in re.findall(r"`(\w+)`", ours)]
    assert len(named) > 20
    import_module("dask_coop.ndmeasure")
    assert not [name for name in named if not hasattr(dask_coop, name)]


def test_badges_have_the_versions_of_the_requirements() -> None:
    text = README.read_text()
    for name, first, last in re.findall(r"badge/(python|numpy)-([\d.]+)_to_([\d.]+)-", text):
        assert f"{name} {first} to {last}" in text.lower().partition("## requirements")[2]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "pycon")], ids=lambda page: page.name
)
def test_sessions_print_what_pages_show(page: Path) -> None:
    parser, said = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    code = "".join(blocks(page, "pycon"))
    said.run(parser.get_doctest(code, {}, page.name, str(page), 0))
    assert said.failures == 0
    assert said.tries > 0


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_made_can_be_made(page: Path) -> None:
    text = "\n".join([*blocks(page, "console", "bash", "sh"), *inline(page)])
    targets = re.findall(r"^(?:\$ )?make ([\w-]+)", text, re.MULTILINE)
    assert targets or page != README
    for target in targets:
        run("make", "--dry-run", f"PY={sys.executable}", target, cwd=REPOSITORY)


#: Asks several commands for help in one process, as a shell would in one each.
HELP = """
import runpy, sys
for command in sys.argv[1:]:
    sys.argv = ["dask_coop", command, "--help"]
    try:
        runpy.run_module("dask_coop", run_name="__main__")
    except SystemExit as end:
        assert not end.code, command
        print("end of", command)
"""


def test_commands_are_there(tmp_path: Path) -> None:
    commands: set[str] = set()
    for page in PAGES:
        text = "\n".join([*blocks(page, "console", "bash", "sh"), *inline(page)])
        commands |= set(re.findall(r"(?:python -m dask_coop|dask-coop) ([a-z]+)", text))
        assert commands or page != README
    said = run(sys.executable, "-c", HELP, *sorted(commands), cwd=tmp_path)
    for command in commands:
        assert f"usage: python -m dask_coop {command}" in said
        assert f"end of {command}" in said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_files(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:href|src)="([^"]+)"', text)
    targets = [target.partition("#")[0] for target in targets if "://" not in target]
    # In backquotes a path counts from the repository.
    written = [text for text in inline(page) if re.fullmatch(r"(?:docs|examples)/[\w./-]+", text)]
    missing = [target for target in targets if not (page.parent / target).exists()]
    missing += [target for target in written if not (REPOSITORY / target).exists()]
    assert not missing


def inline(page: Path) -> list[str]:
    """Return what `page` has in backquotes, outside of blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)

"""What stands outside of the package names what is there: targets, extras, Pythons, versions."""

from __future__ import annotations

import operator
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import release
import yaml

import dask_coop
from dask_coop.cli import main

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
EXTRAS = set(PROJECT["project"]["optional-dependencies"])
TARGETS = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in load(workflow)["jobs"].values() for step in job["steps"]]


def unknown(commands: str) -> set[str]:
    """Return the targets of make and the extras that are named in `commands` and are not there."""
    extras = [name for some in re.findall(r"\[([\w,]+)\]", commands) for name in some.split(",")]
    targets = re.findall(r"\bmake ([a-z][\w-]*)", commands)
    return {*targets} - TARGETS | {*extras} - EXTRAS


def pythons(workflow: Path, may_fail: bool = False) -> set[str]:
    """Return the Pythons that a workflow installs, in jobs that may fail or in the others."""
    found: set[str] = set()
    for job in load(workflow)["jobs"].values():
        if job.get("continue-on-error", False) is not may_fail:
            continue
        matrix = job.get("strategy", {}).get("matrix", {})
        given = [*matrix.get("python", []), *(row["python"] for row in matrix.get("include", []))]
        for step in job["steps"]:
            if str(step.get("uses")).startswith("actions/setup-python@"):
                version = str(step["with"]["python-version"])
                found |= set(given if "matrix.python" in version else version.split())
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_targets_extras_and_pythons_that_there_are(path: Path) -> None:
    assert not unknown("\n".join(step.get("run", "") for step in steps(path)))
    assert pythons(path) <= set(release.PYTHONS)
    # Nobody is allowed more than to read, but the jobs that publish.
    assert load(path)["permissions"] == {"contents": "read"}


def test_what_is_not_there_is_found() -> None:
    assert unknown('make nothing; make lint; pip install ".[cpu,gone]"') == {"nothing", "gone"}


def test_every_python_is_tested_and_released_for() -> None:
    folder = REPOSITORY / ".github" / "workflows"
    assert pythons(folder / "tests.yml") == pythons(folder / "release.yml") == set(release.PYTHONS)
    oldest = release.PYTHONS[0]
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


def minor(version: str) -> int:
    return int(version.partition(".")[2])


def test_the_page_of_versions_has_those_that_are_tested() -> None:
    page = (REPOSITORY / "docs" / "versions.md").read_text()
    readme = (REPOSITORY / "README.md").read_text()
    jobs = load(REPOSITORY / ".github" / "workflows" / "tests.yml")["jobs"]
    oldest, *_, newest = release.PYTHONS
    assert f"| Python | {oldest} | {newest} |" in page
    (coming,) = pythons(REPOSITORY / ".github" / "workflows" / "tests.yml", may_fail=True)
    assert minor(coming) == minor(newest) + 1
    assert f"| Python | {coming} | |" in page
    numpys = [row["numpy"] for row in jobs["numpy"]["strategy"]["matrix"]["include"]]
    assert [minor(version) for version in numpys] == [*range(minor(numpys[-1]) + 1)]
    assert f"| NumPy | {numpys[0]} | {numpys[-1]} |" in page
    assert f"numpy>={numpys[0]}" in PROJECT["project"]["dependencies"]
    assert f"Python {oldest} to {newest}, NumPy {numpys[0]} to {numpys[-1]}" in readme
    needed = dict(re.findall(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", str(PROJECT["project"])))
    assert f"| Dask, distributed | {needed['distributed']} |" in page
    assert f"| xarray | {needed['xarray']} |" in page


def test_development_versions_are_tried_every_week() -> None:
    workflow = load(REPOSITORY / ".github" / "workflows" / "development.yml")
    # YAML takes the word "on" for true.
    (schedule,) = workflow[True]["schedule"]
    *_, day, month, weekday = schedule["cron"].split()
    assert (day, month, weekday) == ("*", "*", "1")
    commands = "\n".join(
        step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]
    )
    for name, address in {
        "dask": "dask/dask",
        "distributed": "dask/distributed",
        "xarray": "pydata/xarray",
    }.items():
        assert f"{name} @ git+https://github.com/{address}" in commands


def test_a_tag_is_published_once_it_was_tried_and_by_no_token() -> None:
    path = REPOSITORY / ".github" / "workflows" / "release.yml"
    jobs = load(path)["jobs"]
    assert any(step.get("run") == "make dist" for step in jobs["build"]["steps"])
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in path.read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_ask_for_what_can_be_typed(path: Path) -> None:
    form = load(path)
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= set(form)
    fields = [field["id"] for field in form["body"]]
    assert len(fields) == len(set(fields))
    text = path.read_text()
    for name in re.findall(r"dask_coop\.(\w+)", text):
        assert name in dask_coop.__all__
    for command in re.findall(r"dask-coop (\w+)", text):
        with pytest.raises(SystemExit) as ended:
            main.main([command, "--help"])
        assert ended.value.code == 0


def test_a_pull_request_is_asked_for_targets_that_there_are() -> None:
    text = (REPOSITORY / ".github" / "pull_request_template.md").read_text()
    assert "make check" in text
    assert not unknown(text.replace("[ ]", ""))


def test_hooks_are_the_steps_of_lint() -> None:
    (repository,) = load(REPOSITORY / ".pre-commit-config.yaml")["repos"]
    hooks = [hook["entry"].split()[2:] for hook in repository["hooks"]]
    recipe = (REPOSITORY / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    said = [line.split()[2:] for line in recipe.splitlines()[1:]]
    # A hook mends what lint tells of.
    assert [each[:2] for each in hooks] == [["ruff", "check"], ["ruff", "format"], ["mypy"]]
    assert [each[0] for each in said] == [each[0] for each in hooks]


def test_the_citation_names_the_package_and_its_license() -> None:
    citation = load(REPOSITORY / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"].startswith("dask_coop: ")
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["authors"]
    assert citation["message"]


def test_the_recipe_needs_what_the_package_needs() -> None:
    recipe = load(REPOSITORY / "tools" / "recipe" / "recipe.yaml")
    project = PROJECT["project"]
    assert recipe["context"]["version"] == dask_coop.__version__
    assert recipe["context"]["python_min"] == release.PYTHONS[0]
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["summary"] == project["description"]
    needed = {need.replace("dask[array]", "dask-core") for need in project["dependencies"]}
    run = {need.replace(" ", "") for need in recipe["requirements"]["run"]}
    assert run == needed | {"python>=${{python_min}}"}
    (backend,) = PROJECT["build-system"]["requires"]
    assert backend in [need.replace(" ", "") for need in recipe["requirements"]["host"]]
    scripts = [f"{name} = {where}" for name, where in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts


def test_dist_finds_the_pythons_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    here = "{}.{}".format(*sys.version_info)
    assert release.find(here) is None
    kept = tmp_path / ".pyenv" / "versions" / f"{here}.7" / "bin" / "python"
    kept.parent.mkdir(parents=True)
    kept.symlink_to(sys.executable)
    # What a shim of pyenv does that stands for a version which nobody has chosen.
    shim = tmp_path / "path" / f"python{here}"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert release.find(here) == str(kept)


def test_dist_asks_for_all_types_but_those_of_other_packages() -> None:
    said = {
        "error": ["Type is missing", 'partially unknown\n  class "Array" has unknown type'],
        "warning": ["No docstring"],
    }
    diagnostics = [
        {"severity": severity, "message": text} for severity in said for text in said[severity]
    ]
    symbol = {"name": "dask_coop.sum", "diagnostics": diagnostics}
    assert release.unknown_types(symbol) == ["dask_coop.sum: Type is missing"]


def test_the_changelog_has_the_version() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[?{re.escape(dask_coop.__version__)}\b", text, re.MULTILINE)


def test_released_names_are_there_or_in_the_changelog() -> None:
    """The latest table of what breaks says what to write instead of a name that is gone."""
    pytest.importorskip("dask_coop.xarray")
    latest = (REPOSITORY / "CHANGELOG.md").read_text().split("\n### What breaks")[1]
    table = latest.partition("\n### ")[0]
    gone = []
    for name in (Path(__file__).parent / "released.txt").read_text().split():
        try:
            operator.attrgetter(name.partition(".")[2])(dask_coop)
        except AttributeError:
            gone.append(name)
    assert [name for name in gone if f"`{name.rpartition('.')[2]}`" not in table] == []

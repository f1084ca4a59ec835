"""Folders of machine code: those that somebody else could write to, or replace, are not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dask_coop.compiled import folders

if not hasattr(os, "getuid"):
    pytest.skip("folders have no owners here", allow_module_level=True)

import grp
import pwd


def test_folders_are_made_for_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "folder"
    before = os.umask(0)
    try:
        assert folders.make(folder) == ""
    finally:
        os.umask(before)
    for path in (folder, folder.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_folders_that_others_can_write_to_or_replace_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    assert folders.objection(folder) == ""
    for path in (folder, folder.parent):
        path.chmod(0o777)
        assert folders.objection(folder) == f"everybody may write to {path}"
        # Nothing is made there, either.
        assert folders.make(folder / "below") == f"everybody may write to {path}"
        assert not (folder / "below").exists()
        path.chmod(0o755)
    # As /tmp: what is there cannot be replaced, but something may be put there.
    folder.parent.chmod(0o1777)
    assert folders.objection(folder) == ""
    assert folders.objection(folder.parent) == f"everybody may write to {folder.parent}"


def test_links_are_followed_and_all_on_the_way_is_looked_at(tmp_path: Path) -> None:
    for name in ("real", "open"):
        (tmp_path / name / "folder").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "good").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "bad").symlink_to("../open/folder")
    assert folders.objection(tmp_path / "good" / "folder") == ""
    said = f"everybody may write to {tmp_path / 'open'}"
    assert folders.objection(tmp_path / "good" / "bad") == said
    # That the link lies where others can replace it is enough.
    (tmp_path / "open" / "link").symlink_to(tmp_path / "real" / "folder")
    assert folders.objection(tmp_path / "open" / "link") == said
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="circle"):
        folders.make(tmp_path / "circle" / "folder")


def test_what_belongs_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert folders.make(tmp_path / "file") == f"{tmp_path / 'file'} is no folder"
    monkeypatch.setattr(folders, "_owners", lambda: {os.getuid() + 1})
    assert "belongs to user" in folders.make(tmp_path)


@pytest.mark.parametrize(
    ("group", "listed", "primary", "good"),
    [
        ("me", [], ["me"], True),
        ("users", ["me"], ["me"], True),
        ("users", ["other"], ["me"], False),
        ("users", [], ["me", "other"], False),
        # A directory that lists no users tells nothing of a group, but for its name.
        ("users", [], [], False),
        ("me", [], [], True),
    ],
)
def test_a_group_may_write_if_nobody_else_is_in_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    listed: list[str],
    primary: list[str],
    good: bool,
) -> None:
    number = tmp_path.stat().st_gid

    def user(name: str) -> Any:
        return SimpleNamespace(pw_name=name, pw_gid=number)

    monkeypatch.setattr(os, "getgid", lambda: number)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user("me"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [*map(user, primary)])
    found = SimpleNamespace(gr_name=group, gr_mem=listed)
    monkeypatch.setattr(grp, "getgrgid", lambda _: found)
    tmp_path.chmod(0o770)
    said = "" if good else f"group {number} may write to {tmp_path}"
    assert folders.objection(tmp_path) == said
    # It has to be the user's first group.
    monkeypatch.setattr(os, "getgid", lambda: number + 1)
    assert folders.objection(tmp_path) == f"group {number} may write to {tmp_path}"


def test_in_a_container_the_group_of_root_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As examples/Dockerfile has it: user 12345, whom nobody knows, of group 0."""

    def unknown(_: int) -> Any:
        raise KeyError

    number, root = tmp_path.stat().st_gid, SimpleNamespace(pw_name="root", pw_gid=0)
    members: list[str] = []
    monkeypatch.setattr(os, "getgid", lambda: number)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwall", lambda: [root])
    found = SimpleNamespace(gr_name="root", gr_mem=members)
    monkeypatch.setattr(grp, "getgrgid", lambda _: found)
    tmp_path.chmod(0o770)
    assert folders.objection(tmp_path) == ""
    members.append("other")
    assert folders.objection(tmp_path) == f"group {number} may write to {tmp_path}"

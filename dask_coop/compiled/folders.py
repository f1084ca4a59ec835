"""Find folders that may hold machine code: those to which nobody else can write.

Whoever can write to such a folder, or replace it, can run code here. So its path is walked as the
system walks it, links included: every folder and link on the way must belong to the user or root,
and nobody else may write to any of the folders. Only folders above the last may be writable if they
are sticky, as /tmp is, because there nobody can replace another user's files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: The most links that Linux follows.
_MOST_LINKS = 40


def make(folder: Path) -> str:
    """Make a folder, and missing ones above it, that only the user can read.

    Returns
    -------
    str
        The `objection` to the folder, or "".

    Raises
    ------
    OSError
        If it cannot be made.
    """
    # Check again afterwards, as somebody else may have made it first.
    if not (reason := objection(folder)):
        for path in (*reversed(folder.absolute().parents), folder):
            if not path.exists():
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
        reason = objection(folder)
    return reason


def objection(folder: Path) -> str:
    """Return why a folder cannot be trusted, or "" if it can, or does not exist yet."""
    if not hasattr(os, "getuid"):
        return f"{folder} is no folder" if folder.exists() and not folder.is_dir() else ""
    last = Path(os.path.realpath(folder))
    for path in _walk(folder.absolute()):
        try:
            status = path.lstat()
        except FileNotFoundError:
            return ""
        if status.st_uid not in _owners():
            return f"{path} belongs to user {status.st_uid}, and this is user {os.getuid()}"
        if stat.S_ISLNK(status.st_mode):
            continue
        if not stat.S_ISDIR(status.st_mode):
            return f"{path} is no folder"
        if path != last and status.st_mode & stat.S_ISVTX:
            continue
        if status.st_mode & stat.S_IWOTH:
            return f"everybody may write to {path}"
        if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid):
            return f"group {status.st_gid} may write to {path}"
    return ""


def _walk(path: Path) -> Iterator[Path]:
    """Yield all folders and links that the system visits to resolve a path.

    Raises
    ------
    OSError
        If symbolic links form a circle.
    """
    current, left, links = Path(path.anchor), list(reversed(path.parts[1:])), 0
    yield current
    while left:
        name = left.pop()
        current = current.parent if name == ".." else current / name
        yield current
        if current.is_symlink():
            links += 1
            if links > _MOST_LINKS:
                raise OSError(f"{path}: its symbolic links lead round in a circle")
            target = current.readlink()
            current = Path(target.anchor) if target.is_absolute() else current.parent
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _owners() -> set[int]:
    return {0, os.getuid()}


def _is_private(group: int) -> bool:
    """Return whether a group is the user's primary one, with no member except the user and root."""
    import grp
    import pwd

    # A directory service may not list its users; then only a group of the user's name counts.
    listed = [entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == group]
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # In containers users may have no entry; then the group must be root's.
        user = "root"
    try:
        entry = grp.getgrgid(group)
    except KeyError:
        return False
    members = {*listed, *entry.gr_mem, *({user} & {entry.gr_name})}
    return group == os.getgid() and members - {"root"} == {user} - {"root"}

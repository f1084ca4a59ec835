"""Which folders may hold machine code: those in which nobody else can put theirs.

Whoever can write to such a folder runs code here, and so does whoever can put another folder in its
place. So a path is walked as the system walks it, with its links followed, and every folder and
link on the way has to belong to the user or to root. Others may write to none of the folders; only
those above the last may be sticky, as /tmp is, where nobody can replace what is somebody else's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: As many links as Linux follows.
_MOST_LINKS = 40


def make(folder: Path) -> str:
    """Make a folder that only the user can read, with those above it, where there is none.

    Returns
    -------
    str
        `objection` to it.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    # Others who can write there may make one first, so it is looked at again.
    if not (reason := objection(folder)):
        for path in (*reversed(folder.absolute().parents), folder):
            if not path.exists():
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
        reason = objection(folder)
    return reason


def objection(folder: Path) -> str:
    """Say why a folder cannot be trusted; "" if it can, or is not there and can be made."""
    if not hasattr(os, "getuid"):
        return f"{folder} is no folder" if folder.exists() and not folder.is_dir() else ""
    last = Path(os.path.realpath(folder))
    for path in _walk(folder.absolute()):
        try:
            found = path.lstat()
        except FileNotFoundError:
            return ""
        if found.st_uid not in _owners():
            return f"{path} belongs to user {found.st_uid}, and this is user {os.getuid()}"
        if stat.S_ISLNK(found.st_mode):
            continue
        if not stat.S_ISDIR(found.st_mode):
            return f"{path} is no folder"
        if path != last and found.st_mode & stat.S_ISVTX:
            continue
        if found.st_mode & stat.S_IWOTH:
            return f"everybody may write to {path}"
        if found.st_mode & stat.S_IWGRP and not _is_own(found.st_gid):
            return f"group {found.st_gid} may write to {path}"
    return ""


def _walk(path: Path) -> Iterator[Path]:
    """Yield all folders and links by which the system finds a path, the path's own end last.

    Raises
    ------
    OSError
        If links lead round in a circle.
    """
    at, left, links = Path(path.anchor), list(reversed(path.parts[1:])), 0
    yield at
    while left:
        part = left.pop()
        at = at.parent if part == ".." else at / part
        yield at
        if at.is_symlink():
            links += 1
            if links > _MOST_LINKS:
                raise OSError(f"{path}: its symbolic links lead round in a circle")
            target = at.readlink()
            at = Path(target.anchor) if target.is_absolute() else at.parent
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _owners() -> set[int]:
    return {0, os.getuid()}


def _is_own(group: int) -> bool:
    """Tell whether a group is the user's first, and nobody else but root is in it."""
    import grp
    import pwd

    # The users of a directory may not be listed, and then nobody is, unless by the group's name.
    listed = [each.pw_name for each in pwd.getpwall() if each.pw_gid == group]
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # As in containers, where the group is root's.
        user = "root"
    try:
        found = grp.getgrgid(group)
    except KeyError:
        return False
    members = {*listed, *found.gr_mem, *({user} & {found.gr_name})}
    return group == os.getgid() and members - {"root"} == {user} - {"root"}

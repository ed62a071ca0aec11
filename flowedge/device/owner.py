"""The user that a directory belongs to, whose rights a command of root takes before it touches the directory.

The files of a service belong to the service's user, who can replace any of them, and any directory among
them, by a link at any time. What root then wrote, or gave to that user, could be a file of somebody else.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 (Python loads it at the first connection, when its files may be out of reach)
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import AccessError

_MAX_LINKS = 40


@dataclass(frozen=True)
class Owner:
    """A user and its group."""

    uid: int
    gid: int


def owner_of(path: Path) -> Owner:
    """Return the first user but root that a part of `path` belongs to.

    From there on, that user decides where the path leads. Root's own links are followed. Root is returned if
    all that exists of the path belongs to root.

    Raises:
        AccessError: when the path has too many links, or a part of it is no directory.
    """
    rest = list(reversed(path.absolute().parts[1:]))
    place, links = Path("/"), 0
    while rest:
        name = rest.pop()
        if name == "..":
            place = place.parent
            continue
        try:
            found = (place / name).lstat()
        except FileNotFoundError:
            break
        except NotADirectoryError as error:
            raise AccessError(f"{place} is not a directory") from error
        if found.st_uid != 0:
            return Owner(found.st_uid, found.st_gid)
        if not stat.S_ISLNK(found.st_mode):
            place /= name
            continue
        links += 1
        if links > _MAX_LINKS:
            raise AccessError(f"{path} leads through more than {_MAX_LINKS} links")
        target = (place / name).readlink()
        if target.is_absolute():
            place = Path("/")
        rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return Owner(0, 0)


def become_owner(path: Path) -> None:
    """Give up root's rights for those of the user that `path` belongs to, for the rest of this process.

    Processes of other users, and paths of root, change nothing.

    Raises:
        AccessError: when the system refuses the change.
    """
    if os.geteuid() != 0:
        return
    owner = owner_of(path)
    if owner.uid == 0:
        return
    try:
        name = pwd.getpwuid(owner.uid).pw_name
        groups = os.getgrouplist(name, owner.gid)
    except KeyError:  # files of a container, or of a user that was removed
        groups = [owner.gid]
    try:
        os.setgroups(groups)
        os.setresgid(owner.gid, owner.gid, owner.gid)
        os.setresuid(owner.uid, owner.uid, owner.uid)
    except OSError as error:
        raise AccessError(
            f"{path} belongs to user {owner.uid}, whose rights cannot be taken: {error}"
        ) from error


def is_trusted_owner(path: Path) -> bool:
    """Return False if this process is root's, and a part of the path belongs to another user."""
    return os.geteuid() != 0 or owner_of(path).uid == 0


def check_owner(path: Path) -> None:
    """Check that root is not about to write where another user decides where a path leads.

    Raises:
        AccessError: when this process is root's, and a part of the path belongs to another user.
    """
    if not is_trusted_owner(path):
        raise AccessError(
            f"{path} belongs to user {owner_of(path).uid}, and root does not write there; run the command as "
            "that user"
        )

"""Which file system holds a path, and whether a store can live on it.

LMDB shares one memory map and robust mutexes among processes, and memcore adds flock. On a network
file system neither holds between two hosts, some do not even write through a map in order, and the
file is damaged without a word. So such a path is refused before anything is made there.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final, NamedTuple

from memcore.errors import StoreAccessError

__all__ = [
    "Mount",
    "find_mount",
    "is_network",
    "lies_in_memory",
    "mount_of",
    "refuse_network",
]

_MOUNTINFO: Final = "/proc/self/mountinfo"
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_FIELDS_MIN: Final = 6
_READ_BYTES: Final = 64 * 1024

_NETWORK: Final = frozenset(
    (
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs",
        "gpfs", "lustre", "mapr", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs",
        "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "weka", "wekafs",
    )
)  # fmt: skip
_MEMORY: Final = frozenset(("ramfs", "tmpfs"))
_NETWORK_FUSE: Final = frozenset(
    (
        "afpfs", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "curlftpfs", "davfs", "davfs2",
        "gcsfuse", "glusterfs", "goofys", "grpcfuse", "httpdirfs", "juicefs", "mount-s3",
        "mountpoint-s3", "moosefs", "osxfs", "rclone", "s3fs", "seaweedfs", "sshfs", "virtiofs",
        "vmhgfs-fuse",
    )
)  # fmt: skip


class Mount(NamedTuple):
    """One line of mountinfo."""

    kind: str
    """The type, as ``ext4`` or ``fuse.sshfs``."""
    point: str
    source: str
    options: str
    """Those of the mount, then those of the file system."""


def is_network(kind: str) -> bool:
    """Whether file systems of this type are shared with other hosts, or behave as if."""
    family, _, name = kind.partition(".")
    return name in _NETWORK_FUSE if family == "fuse" else kind in _NETWORK


def lies_in_memory(fd: int) -> bool:
    """Whether an open file lies in memory alone; False if the system does not tell."""
    found = mount_of(f"/proc/self/fd/{fd}")
    return found is not None and found.kind in _MEMORY


def refuse_network(path: str) -> None:
    """Refuse a store at ``path``, there or to be made.

    Raises:
        StoreAccessError: its file system is a network's.
    """
    found = mount_of(path)
    if found is not None and is_network(found.kind):
        raise StoreAccessError(
            f"{path}: lies on {found.kind} (mounted at {found.point} from {found.source}), where"
            " the locks and the shared memory map of a store do not hold: two hosts would damage"
            " it; put it on a local disk and serve it from one host, or pass allow_network_fs=True"
            " if no other host or virtual machine ever opens it"
        )


def mount_of(path: str) -> Mount | None:
    """The mount that holds ``path``, or its directory if there is no such file yet.

    None if the system does not tell (no Linux, no /proc).
    """
    if not hasattr(os, "O_PATH"):
        return None
    with suppress(OSError):
        return _mount_of(path if os.path.lexists(path) else os.path.dirname(path) or ".")
    return None


def _mount_of(path: str) -> Mount | None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        device = os.fstat(fd).st_dev
        told = _MOUNT_ID.search(_read(f"/proc/self/fdinfo/{fd}"))
        real = os.fsencode(os.readlink(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)
    return find_mount(
        _read(_MOUNTINFO),
        mount_id=int(told[1]) if told else None,
        device=(os.major(device), os.minor(device)),
        path=real,
    )


def _read(path: str) -> bytes:
    """A file of /proc, in as few calls as can be: this is on the way of every opening."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(fd, _READ_BYTES)]
        while parts[-1]:
            parts.append(os.read(fd, _READ_BYTES))
    finally:
        os.close(fd)
    return b"".join(parts)


def find_mount(
    mountinfo: bytes, *, mount_id: int | None, device: tuple[int, int], path: bytes
) -> Mount | None:
    """The line of a path: by the kernel's number of its mount, if it told one.

    Else among the mounts of its device the one with the longest mount point above it; and if that
    device has no line (btrfs and overlay give files numbers of their own), among all. Of several
    mounts on one point, the last hides the others.
    """
    if mount_id is not None:
        start = b"%d " % mount_id
        at = 0 if mountinfo.startswith(start) else mountinfo.find(b"\n" + start) + 1
        if at or mountinfo.startswith(start):
            found = _parse(mountinfo[at:].partition(b"\n")[0])
            if found is not None:
                return found[2]
    mounts = [found for found in map(_parse, mountinfo.splitlines()) if found is not None]
    ours = [found for found in mounts if found[0] == b"%d:%d" % device]
    for candidates in (ours, mounts):
        above = [found for found in candidates if _is_above(found[1], path)]
        if above:
            longest = max(len(point) for _, point, _ in above)
            return [mount for _, point, mount in above if len(point) == longest][-1]
    return None


def _is_above(point: bytes, path: bytes) -> bool:
    return path == point or path.startswith(point.rstrip(b"/") + b"/")


def _parse(line: bytes) -> tuple[bytes, bytes, Mount] | None:
    """``(device, mount point, mount)`` of a line, None of anything else.

    The line is ``id parent device root point options [tags ...] - type source options``.
    """
    before, dash, after = line.partition(b" - ")
    left, right = before.split(b" "), after.split(b" ")
    if not dash or len(left) < _FIELDS_MIN or not right[0]:
        return None
    point = _ESCAPE.sub(lambda found: bytes((int(found[1], 8) & 0xFF,)), left[4])
    source = _ESCAPE.sub(lambda found: bytes((int(found[1], 8) & 0xFF,)), b" ".join(right[1:2]))
    options = b",".join((left[5], *right[2:3]))
    texts = (os.fsdecode(text) for text in (right[0], point, source, options))
    return left[2], point, Mount(*texts)

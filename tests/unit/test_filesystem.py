"""Which file system holds a path, and that stores are not made on a network's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import memcore
from memcore.errors import StoreAccessError
from memcore.store import datafile as filesystem
from memcore.store.datafile import Mount, find_mount, is_network, mount_of

MOUNTS = rb"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:40 / /net/my\040files rw master:2 propagate_from:3 - nfs4 host:/a\040b rw,vers=4.2
31 27 254:0 /srv/data /bind rw,noatime - ext4 /dev/vda rw
32 27 0:50 /@home /home rw,relatime shared:9 - btrfs /dev/vdb rw,subvol=/@home
33 27 0:60 / /merged rw - overlay overlay rw,lowerdir=/l,upperdir=/u
34 27 0:61 / /ssh rw - fuse.sshfs me@host: rw
35 34 0:62 / /ssh rw - tmpfs tmpfs rw
36 27 0:63 / /tab\011bed ro - cifs //host/share rw
37 27 0:64 / /homestead rw - 9p share rw
a line of something else
38 27 0:65 / /odd rw - 
""".strip()  # noqa: W291


def kind(path: str, *, device: tuple[int, int] = (254, 0), mount_id: int | None = None) -> str:
    found = find_mount(MOUNTS, mount_id=mount_id, device=device, path=os.fsencode(path))
    return "" if found is None else found.kind


def test_the_kernel_tells_the_mount() -> None:
    assert find_mount(MOUNTS, mount_id=30, device=(9, 9), path=b"/elsewhere") == Mount(
        "nfs4", "/net/my files", "host:/a b", "rw,rw,vers=4.2"
    )
    assert kind("/x", mount_id=22, device=(9, 9)) == "proc"  # the first line
    assert kind("/x", mount_id=2) == "ext4"  # a number that only begins one: told by the path


@pytest.mark.parametrize(
    ("path", "device", "expected"),
    [
        ("/var/agent.memcore", (254, 0), "ext4"),
        ("/net/my files/agent.memcore", (0, 40), "nfs4"),
        ("/tab\tbed/x", (0, 63), "cifs"),
        ("/bind/x", (254, 0), "ext4"),
        ("/home/me/x", (0, 51), "btrfs"),  # a subvolume's files have a device of their own
        ("/homestead/x", (0, 99), "9p"),  # and /home is no parent of it
        ("/merged/x", (0, 66), "overlay"),
        ("/ssh/x", (0, 99), "tmpfs"),  # the later mount hides the earlier
        ("/ssh/x", (0, 61), "fuse.sshfs"),
        ("/elsewhere/x", (0, 40), "ext4"),  # its device is mounted, but not above it
    ],
)
def test_without_its_number_the_device_and_the_path_tell(path, device, expected) -> None:
    assert kind(path, device=device) == expected


def test_the_options_of_a_bind_mount_are_its_own() -> None:
    found = find_mount(MOUNTS, mount_id=None, device=(254, 0), path=b"/bind/x")
    assert found is not None
    assert found.options == "rw,noatime,rw"


def test_nothing_is_known_of_nothing() -> None:
    assert find_mount(b"", mount_id=1, device=(1, 1), path=b"/x") is None
    assert find_mount(b"nonsense\n\n - \n", mount_id=None, device=(1, 1), path=b"/x") is None
    assert find_mount(MOUNTS, mount_id=38, device=(0, 65), path=b"relative") is None


@pytest.mark.parametrize(
    "name",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "virtiofs",
        "fuse.sshfs",
        "fuse.s3fs",
        "ceph",
        "fuse.ceph",
        "glusterfs",
        "fuse.glusterfs",
        "lustre",
        "afs",
        "gfs2",
        "ocfs2",
        "vboxsf",
        "fuse.rclone",
    ],
)
def test_networks(name) -> None:
    assert is_network(name)


@pytest.mark.parametrize(
    "name",
    [
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "overlay",
        "tmpfs",
        "fuse",
        "fuseblk",
        "fuse.mergerfs",
        "fuse.ntfs-3g",
        "bcachefs",
    ],
)
def test_local_ones(name) -> None:
    assert not is_network(name)


@pytest.fixture
def on_nfs(monkeypatch) -> None:
    mount = Mount("nfs4", "/net", "host:/a", "rw")
    monkeypatch.setattr(filesystem, "mount_of", lambda _: mount)


def test_a_store_on_a_network_is_refused(path, on_nfs) -> None:
    with pytest.raises(memcore.StoreAccessError) as refused:
        memcore.open(path)
    assert "nfs4 (mounted at /net from host:/a)" in str(refused.value)
    assert "allow_network_fs=True" in str(refused.value)
    assert list(path.parent.iterdir()) == []


def test_also_one_that_is_there(path, monkeypatch) -> None:
    memcore.open(path).close()
    monkeypatch.setattr(filesystem, "is_network", lambda _: True)
    for read_only in (False, True):
        with pytest.raises(memcore.StoreAccessError, match="local disk"):
            memcore.open(path, read_only=read_only)


def test_unless_the_caller_consents(path, on_nfs) -> None:
    with memcore.open(path, allow_network_fs=True) as db:
        db.session("s").append({"role": "user", "content": "x"})
    with pytest.raises(memcore.InvalidOptionError):
        memcore.open(path, allow_network_fs=1)  # type: ignore[arg-type]


def test_a_store_in_memory_is_nowhere(on_nfs) -> None:
    with memcore.open(":memory:") as db:
        db.session("s").append({"role": "user", "content": "x"})
        assert len(db.session("s")) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="mountinfo is Linux's")
def test_the_mounts_of_this_machine() -> None:
    found = mount_of("/proc/self/status")
    assert found is not None
    assert (found.kind, found.point) == ("proc", "/proc")
    new = mount_of("/proc/no such file")
    assert new == found
    assert mount_of("/no such/directory/file") is None


def test_a_system_that_does_not_tell(path, monkeypatch) -> None:
    def refuse(_: str) -> bytes:
        raise PermissionError

    monkeypatch.setattr(filesystem, "_read", refuse)
    assert mount_of(str(path)) is None
    memcore.open(path).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_file_that_is_mounted_alone_is_refused(tmp_path: Path) -> None:
    """Its lock file is another one at each place where it is mounted."""
    path, place = tmp_path / "a.memcore", tmp_path / "place" / "b.memcore"
    with memcore.open(path) as db:
        db.session("s").append({"role": "user", "content": "x"})
    place.parent.mkdir()
    place.touch()
    subprocess.run(["mount", "--bind", path, place], check=True)
    try:
        for options in ({}, {"read_only": True}):
            with pytest.raises(StoreAccessError, match="mount its directory"):
                memcore.open(place, **options)
        with memcore.open(place, allow_network_fs=True) as db:
            assert len(db.session("s")) == 1
    finally:
        subprocess.run(["umount", place], check=True)

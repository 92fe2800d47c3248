"""Hosts without a scheduler, that reach each other by ssh."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.clusters.cluster import Cluster

_CONFIG = """\
AuthorizedKeysFile .ssh/authorized_keys
HostKey /run/sshd/key
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile /run/sshd.pid
Subsystem sftp internal-sftp
UsePAM no
"""


@dataclass(frozen=True)
class SshHosts:
    """An sshd on each host; every host knows the keys of all, and the user's key opens all."""

    names: tuple[str, ...] = ("host1", "host2", "host3")
    programs: tuple[str, ...] = ("sshd", "ssh", "ssh-keygen")
    places: tuple[str, ...] = ("/etc/ssh",)

    def prepare(self, cluster: Cluster) -> None:
        (cluster.place("/etc/ssh") / "sshd_config").write_text(_CONFIG)
        user = cluster.home / ".ssh"
        user.mkdir(mode=0o700)
        public = _make_key(user / "id_ed25519")
        (user / "authorized_keys").write_text(public)
        keys = [_make_key(cluster.place("/etc/ssh") / name) for name in self.names]
        named = zip(self.names, cluster.addresses, keys, strict=True)
        known = [f"{name},{address} {key}" for name, address, key in named]
        (user / "known_hosts").write_text("".join(known))

    def serve(self, cluster: Cluster, host: int) -> None:
        key = f"/etc/ssh/{self.names[host]}"
        cluster.tell("install", "-D", "-m", "600", key, "/run/sshd/key", host=host)
        # -E: what it says of users goes to a file, as there is no syslog.
        cluster.tell("/usr/sbin/sshd", "-E", "/var/log/sshd.log", host=host)

    def settle(self, cluster: Cluster, hosts: Sequence[int]) -> None:
        """sshd listens before it goes to the background."""


def ssh_hosts() -> Cluster:
    """Three equal hosts: host1, host2, host3."""
    return Cluster(SshHosts())


def _make_key(path: Path) -> str:
    """A key without a password; its public half."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(argv, check=True, timeout=30)
    return path.with_suffix(".pub").read_text()

"""Slurm from Debian's packages: a login node with the controller, and two nodes that compute."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.clusters.cluster import Cluster, wait_for

PMIX = list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so"))
_CONFIG = """\
ClusterName=test
SlurmctldHost={login}
SlurmUser=root
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdSpoolDir=/var/spool/slurmd
StateSaveLocation=/var/spool/slurmctld

# No control groups: the machine's are not ours.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none

SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
# Nodes have more cores than the machine.
SlurmdParameters=config_overrides

# Tests do not like to wait.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
KillWait=5
MinJobAge=120
CompleteWait=0

JobRequeue=1
ReturnToService=2
SlurmdTimeout={silence_s}
MessageTimeout={answer_s}
OverTimeLimit=0

{nodes}
PartitionName=main Nodes={computing} Default=YES MaxTime=60 DefaultTime=10 State=UP
PartitionName=other Nodes={computing} MaxTime=60 DefaultTime=10 State=UP
"""
_NODE = "NodeName={name} NodeAddr={address} CPUs=4 CoresPerSocket=4 RealMemory=8000 State=UNKNOWN"
_USABLE = {"idle", "mixed", "allocated", "completing"}


@dataclass(frozen=True)
class Slurm:
    """munged everywhere, slurmctld on the first host, slurmd on the others."""

    names: tuple[str, ...] = ("login", "node1", "node2")
    programs: tuple[str, ...] = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
    places: tuple[str, ...] = ("/etc/slurm", "/etc/munge")
    silence_s: int = 60
    """A node that does not answer for so long is given up; a busy machine is not so slow."""

    def prepare(self, cluster: Cluster) -> None:
        named = list(zip(self.names, cluster.addresses, strict=True))[1:]
        nodes = "\n".join(_NODE.format(name=name, address=address) for name, address in named)
        computing = ",".join(self.names[1:])
        text = _CONFIG.format(
            login=self.names[0],
            nodes=nodes,
            computing=computing,
            silence_s=self.silence_s,
            answer_s=min(self.silence_s, 30),
        )
        (cluster.place("/etc/slurm") / "slurm.conf").write_text(text)
        (cluster.place("/etc/munge") / "munge.key").write_bytes(secrets.token_bytes(128))
        cluster.tell("chown", "-R", "munge:munge", "/etc/munge")
        cluster.tell("chmod", "-R", "go=", "/etc/munge")

    def serve(self, cluster: Cluster, host: int) -> None:
        mine = ("-o", "munge", "-g", "munge")
        cluster.tell("install", "-d", *mine, "/run/munge", "/var/log/munge", host=host)
        # Beside the socket, and not in the machine's /var/lib.
        seed = "--seed-file=/run/munge/seed"
        cluster.tell("runuser", "-u", "munge", "--", "munged", seed, host=host)
        if host == 0:
            cluster.tell("install", "-d", "/var/spool/slurmctld", host=host)
        cluster.tell("slurmctld" if host == 0 else "slurmd", host=host)

    def settle(self, cluster: Cluster, hosts: Sequence[int]) -> None:
        names = ",".join(self.names[host] for host in hosts if host) or self.names[1]

        def states() -> set[str]:
            said = cluster.run(["sinfo", "-h", "-N", "-p", "main", "-n", names, "-o", "%T"])
            return set(said.stdout.split())

        wait_for(f"{names} to be usable", lambda: states() and states() <= _USABLE)


def slurm(**changes: int) -> Cluster:
    """login with the controller; node1 and node2 with 4 CPUs each."""
    return Cluster(Slurm(**changes))

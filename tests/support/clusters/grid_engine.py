"""Grid Engine from Debian's packages: a login node with the master, and two execution hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.clusters.cluster import Cluster, wait_for

_STOCK = Path("/usr/share/gridengine")
_CELL = "/var/lib/gridengine/default"
_SPOOL = "/var/spool/gridengine"
_PROGRAMS = "/usr/lib/gridengine"

_CONFIGURATION = {
    # Root's jobs are jobs, too.
    "min_uid": "0",
    "min_gid": "0",
    "shell_start_mode": "unix_behavior",
    # A host that is silent is given up, and its jobs start elsewhere, while a test waits.
    "load_report_time": "00:00:05",
    "max_unheard": "00:00:20",
    "reschedule_unknown": "00:00:10",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false",
}
_SCHEDULER = {"schedule_interval": "0:0:2", "flush_submit_sec": "1", "flush_finish_sec": "1"}

_HOST = """\
hostname {name}
load_scaling NONE
complex_values NONE
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""
_PARALLEL = """\
pe_name {name}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $round_robin
control_slaves {tight}
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
_QUEUE = """\
qname all.q
hostlist {hosts}
seq_no 0
load_thresholds NONE
suspend_thresholds NONE
nsuspend 1
suspend_interval 00:05:00
priority 0
min_cpu_interval 00:05:00
processors UNDEFINED
qtype BATCH INTERACTIVE
ckpt_list NONE
pe_list mpi mpi_loose
rerun TRUE
slots 4
tmpdir /tmp
shell /bin/bash
prolog NONE
epilog NONE
shell_start_mode unix_behavior
starter_method NONE
suspend_method NONE
resume_method NONE
terminate_method NONE
notify 00:00:10
owner_list NONE
user_lists NONE
xuser_lists NONE
subordinate_list NONE
complex_values NONE
projects NONE
xprojects NONE
calendar NONE
initial_state default
"""
"""No threshold of load: that is the machine's, whatever else it does."""
_LIMITS = ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")


@dataclass(frozen=True)
class GridEngine:
    """sge_qmaster on the first host, sge_execd on the others; jobs may be submitted anywhere."""

    names: tuple[str, ...] = ("login", "node1", "node2")
    programs: tuple[str, ...] = ("sge_qmaster", "sge_execd", "qsub", "qconf")
    places: tuple[str, ...] = (_CELL,)

    def prepare(self, cluster: Cluster) -> None:
        """Fill the master's spool with most of what `qconf` would tell it, before it runs."""
        cell = cluster.place(_CELL)
        (cell / "common").mkdir()
        (cell / "common/act_qmaster").write_text(f"{self.names[0]}\n")
        (cell / "common/bootstrap").write_text((_STOCK / "default-bootstrap").read_text())
        for name, text in _render(self.names):
            path = cell / "templates" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        cluster.tell("chown", "-R", "sgeadmin:sgeadmin", _CELL)
        _make_spool(cluster, 0)
        place = f"{_SPOOL}/spooldb"
        self._spool(cluster, "spoolinit", "berkeleydb", "libspoolb", place, "init")
        self._spool(cluster, "spooldefaults", "managers", "root", "sgeadmin")
        for kind, path in _templates().items():
            self._spool(cluster, "spooldefaults", kind, path)

    def serve(self, cluster: Cluster, host: int) -> None:
        _make_spool(cluster, host)
        cluster.tell("sge_execd" if host else "sge_qmaster", host=host)
        if host == 0:
            # It says that it is up before it listens.
            wait_for("the master", lambda: cluster.run(["qconf", "-ssconf"]).returncode == 0)
            scheduler = _change(cluster.tell("qconf", "-ssconf"), _SCHEDULER)
            (cluster.place(_CELL) / "templates/scheduler").write_text(scheduler)
            cluster.tell("qconf", "-Msconf", f"{_CELL}/templates/scheduler")
            if cluster.run(["qconf", "-sq", "all.q"]).returncode:
                # Only a master that runs makes the queue's part on each host.
                cluster.tell("qconf", "-Aq", f"{_CELL}/templates/all.q")

    def settle(self, cluster: Cluster, hosts: Sequence[int]) -> None:
        """A queue has no state when it is ready; it has one until its host has reported."""
        names = [self.names[host] for host in hosts if host]

        def ready() -> bool:
            lines = cluster.run(["qstat", "-f", "-q", "all.q"]).stdout.splitlines()
            rows = {row[0]: row for row in map(str.split, lines) if row[:1]}
            return all(len(rows.get(f"all.q@{name}", "")) == 5 for name in names)

        wait_for(f"the queues of {names} to be ready", ready)

    def _spool(self, cluster: Cluster, program: str, *arguments: str) -> None:
        env = {"SGE_ROOT": str(Path(_CELL).parent), "SGE_CELL": Path(_CELL).name}
        argv = ("runuser", "-u", "sgeadmin", "--", f"{_PROGRAMS}/{program}", *arguments)
        cluster.tell(*argv, env=env)


def grid_engine() -> Cluster:
    """login with the master; node1 and node2 with 4 slots each in all.q."""
    return Cluster(GridEngine())


def _templates() -> dict[str, str]:
    """What spooldefaults reads, of each kind."""
    ours = ("adminhosts", "submithosts", "exechosts", "pes")
    return {
        "configuration": f"{_CELL}/templates/configuration",
        "complexes": f"{_STOCK}/util/resources/centry",
        "usersets": f"{_STOCK}/util/resources/usersets",
        **{kind: f"{_CELL}/templates/{kind}" for kind in ours},
    }


def _render(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    stock = (_STOCK / "default-configuration").read_text()
    yield "configuration", _change(stock, _CONFIGURATION)
    for name in names:
        yield f"adminhosts/{name}", f"hostname {name}\n"
        yield f"submithosts/{name}", f"hostname {name}\n"
    for name in names[1:]:
        yield f"exechosts/{name}", _HOST.format(name=name)
    yield "pes/mpi", _PARALLEL.format(name="mpi", tight="TRUE")
    yield "pes/mpi_loose", _PARALLEL.format(name="mpi_loose", tight="FALSE")
    limits = "".join(f"s_{name} INFINITY\nh_{name} INFINITY\n" for name in _LIMITS)
    yield "all.q", _QUEUE.format(hosts=" ".join(names[1:])) + limits


def _change(text: str, values: Mapping[str, str]) -> str:
    """The same configuration with some values changed."""
    for name, value in values.items():
        text = re.sub(rf"^{name}\s.*$", f"{name} {value}", text, flags=re.MULTILINE)
    return text


def _make_spool(cluster: Cluster, host: int) -> None:
    for name in ("qmaster/job_scripts", "spooldb", "execd"):
        cluster.tell("mkdir", "-p", f"{_SPOOL}/{name}", host=host)
    cluster.tell("chown", "-R", "sgeadmin:sgeadmin", _SPOOL, host=host)

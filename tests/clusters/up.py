"""A cluster to try things on by hand: `python tests/clusters/up.py ssh|slurm|sge [-- COMMAND ...]`.

It brings the cluster up, runs the command on its first host (a shell, if none is given), and takes
the cluster down. What lies in $CLUSTER is seen by all hosts under that path, and goes with them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.clusters.cluster import HOME, Cluster, login_environment
from support.clusters.grid_engine import grid_engine
from support.clusters.slurm import slurm
from support.clusters.ssh_hosts import ssh_hosts

from paceline.errors import PacelineError

CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "ssh": ssh_hosts,
    "slurm": slurm,
    "sge": grid_engine,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cluster", choices=CLUSTERS)
    parser.add_argument("--host", type=int, default=0, help="where to run it (default: 0)")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="default: a shell")
    args = parser.parse_args()
    began = time.monotonic()
    try:
        with CLUSTERS[args.cluster]() as cluster:
            took = time.monotonic() - began
            names = ", ".join(cluster.names)
            print(f"{args.cluster}: {names}, up in {took:.1f} s", file=sys.stderr)
            return run(cluster, args.host, args.command or ["bash"])
    except PacelineError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def run(cluster: Cluster, host: int, command: list[str]) -> int:
    """With our own terminal, if there is one."""
    env = {**login_environment(), "CLUSTER": str(cluster.folder)}
    return subprocess.call([*cluster.enter(host), "env", "-C", HOME, *command], env=env)


if __name__ == "__main__":
    sys.exit(main())

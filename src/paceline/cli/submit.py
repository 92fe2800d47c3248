"""`paceline submit`: submit a training or a script to a scheduler."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paceline.cli.inner_command import InnerCommand, after_separator, read_command
from paceline.cluster.schedulers import SCHEDULERS
from paceline.cluster.schedulers.follow import explain_stuck, follow, stop_command
from paceline.cluster.schedulers.interface import Scheduler
from paceline.cluster.schedulers.request import JobRequest, make_request
from paceline.cluster.schedulers.submit import RunDirTaken, Submitted, ask_scheduler, submit
from paceline.cluster.schedulers.sweep import make_tasks
from paceline.errors import ConfigError, LaunchError

_USUAL_REQUEUES = 10
_NAMES_TRIED = 100

_RESOURCES: tuple[tuple[str, str, str, str], ...] = (
    ("nodes", "--nodes", "N", "machines (default 1)"),
    ("ranks_per_node", "--ranks-per-node", "N", "processes on each (default 1)"),
    ("threads", "--threads", "T", "threads and cores for each rank (default 1)"),
    ("memory_per_rank", "--memory-per-rank", "SIZE", "as 2G or 500M (default: the site's)"),
    ("time", "--time", "TIME", "limit, as 30m, 2h or 1-12:00:00 (default: the queue's)"),
    (
        "save_time",
        "--save-time",
        "TIME",
        "how long before the limit the job is told to save (default 90s, less for short jobs)",
    ),
    ("queue", "--queue", "NAME", "queue or partition (default: the site's)"),
    ("account", "--account", "NAME", "account or project to charge"),
    ("gpus_per_node", "--gpus-per-node", "N", "GPUs on each node"),
    ("name", "--name", "NAME", "of the job (default: model and rule, or the script's name)"),
    (
        "requeue",
        "--requeue",
        "N",
        "how often a job that has saved is requeued (default: 10 for train, 0 for run, whose "
        "script must end with code 75 once it has saved)",
    ),
)
_LISTS: tuple[tuple[str, str, str, str], ...] = (
    ("modules", "--module", "NAME", "load an environment module; may be repeated"),
    (
        "env",
        "--env",
        "NAME[=VALUE]",
        "set a variable in the job; without a value: to its value here, which the script does not "
        "contain; may be repeated",
    ),
    ("after", "--after", "ID[,ID]", "start when these jobs have succeeded"),
    ("extra", "--extra", "TEXT", "a directive in the scheduler's syntax; may be repeated"),
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "submit",
        description="Write a job script, and submit it to the scheduler. Example: paceline submit "
        "slurm --nodes 2 --ranks-per-node 8 --time 2h -- train mnist --epochs 20",
    )
    schedulers = parser.add_subparsers(dest="scheduler", metavar="SCHEDULER", required=True)
    for key, scheduler in SCHEDULERS.items():
        _add_scheduler(schedulers, key, scheduler)


def _add_scheduler(
    schedulers: argparse._SubParsersAction[argparse.ArgumentParser], key: str, scheduler: Scheduler
) -> None:
    one = schedulers.add_parser(
        key,
        help=f"by {scheduler.TITLE}",
        usage=f"paceline submit {key} [RESOURCES] -- train ... | run ...",
        description=f"Submit a command to {scheduler.TITLE}. {scheduler.SUBMIT_NOTES}"
        "Before its time limit a training saves, goes back into the queue and resumes from there.",
        epilog="Script, log and exit code are in the run directory: job.sh, job-ID.log, "
        "job-ID.exit. Exit code: 0 submitted, 2 wrong settings, 1 refused; with --wait the job's.",
    )
    for name, flag, metavar, text in _RESOURCES:
        one.add_argument(flag, dest=name, metavar=metavar, help=text)
    if key == "sge":
        one.add_argument("--pe", help="parallel environment (default mpi, or the only one)")
    for name, flag, metavar, text in _LISTS:
        one.add_argument(flag, dest=name, metavar=metavar, action="append", default=[], help=text)
    one.add_argument("--array-seeds", metavar="1-5", help="a task for each seed, in one job array")
    one.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="a task for each value of a setting; repeated: for each combination",
    )
    one.add_argument("--dry-run", action="store_true", help="print the script, submit nothing")
    one.add_argument(
        "--wait", action="store_true", help="show the log and return the job's exit code"
    )
    one.add_argument("job", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="train or run")
    one.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    scheduler = SCHEDULERS[args.scheduler]
    if args.dry_run:
        sys.stdout.write(scheduler.render(_read_request(args, scheduler)[0]))
        return 0
    request, job = _submit(args, scheduler)
    sys.stdout.write(describe(job, request, scheduler))
    sys.stdout.flush()
    if args.wait:
        return _wait(job, scheduler)
    state = scheduler.read_state(job.id, ask_scheduler)
    if state.kind == "stuck":
        sys.stderr.write(
            f"paceline: job {job.id} will not start: {explain_stuck(scheduler, state)}\n"
        )
    return 0


def _submit(args: argparse.Namespace, scheduler: Scheduler) -> tuple[JobRequest, Submitted]:
    """Submit it; if another process takes the name of its run directory, choose another."""
    for _ in range(_NAMES_TRIED):
        request, is_new = _read_request(args, scheduler)
        with suppress(RunDirTaken):
            return request, submit(request, scheduler, is_new)
    raise LaunchError(
        f"{_NAMES_TRIED} run directories were taken by other processes, the last "
        f"{request.run_dir}; give --run-dir"
    )


def _read_request(args: argparse.Namespace, scheduler: Scheduler) -> tuple[JobRequest, bool]:
    """Read command and resources; the faults of both are reported together.

    Also returns whether the run directory is a new one.
    """
    faults: list[str] = []
    command = InnerCommand("train", (), "job", Path("runs").absolute())
    try:
        tasks = make_tasks(args.array_seeds, args.sweep)
        command = read_command(after_separator(args.job), tasks)
    except ConfigError as error:
        faults.append(str(error))
    try:
        request = make_request(_options(args), _known(command), scheduler.check)
        faults += _contradictions(command, request)
    except ConfigError as error:
        faults.append(str(error))
    if faults:
        raise ConfigError("; ".join(faults))
    started = (command.kind, "-n", str(request.ranks), "--threads", str(request.threads))
    request = replace(request, command=(*started, *command.words))
    return scheduler.fill_in(request, ask_scheduler), command.is_new


def _options(args: argparse.Namespace) -> dict[str, object]:
    names = [name for name, *_ in (*_RESOURCES, *_LISTS)]
    options = {name: getattr(args, name) for name in names} | {"pe": getattr(args, "pe", None)}
    data = os.environ.get("PACELINE_DATA")
    if data:  # not every scheduler passes on the shell's variables
        options["env"] = [f"PACELINE_DATA={data}", *options["env"]]
    return options


def _known(command: InnerCommand) -> dict[str, object]:
    return {
        "command": command.words,
        "run_dir": command.run_dir,
        "directory": Path.cwd(),
        "python": sys.executable,
        "name": command.name,
        "requeue": _USUAL_REQUEUES if command.kind == "train" else 0,
        "tasks": command.tasks,
    }


def _contradictions(command: InnerCommand, request: JobRequest) -> list[str]:
    """Numbers that differ between the command and the resources; missing variables."""
    faults = [
        f"--env {name} takes its value from here, and {name} is not set: export it, or use "
        f"--env {name}=VALUE"
        for name in request.passed
        if name not in os.environ
    ]
    if command.ranks not in (None, request.ranks):
        faults.append(
            f"the command says -n {command.ranks}, the resources {request.nodes} nodes x "
            f"{request.ranks_per_node} ranks = {request.ranks}: omit -n"
        )
    if command.threads not in (None, request.threads):
        faults.append(
            f"the command says --threads {command.threads}, the resources {request.threads}: give "
            "--threads before the --, once"
        )
    return faults


def describe(job: Submitted, request: JobRequest, scheduler: Scheduler) -> str:
    """What you want to know about a job that was accepted."""
    counts = (
        (request.nodes, "node"),
        (request.ranks_per_node, "rank"),
        (request.threads, "thread"),
    )
    size = " x ".join(f"{count} {thing}{'s' * (count > 1)}" for count, thing in counts)
    array = f", {job.tasks} tasks" if job.tasks else ""
    log = job.log(1) if job.tasks else job.log()
    rows = [
        ("run directory", shlex.quote(_short(job.run_dir))),
        ("log", f"tail -F {shlex.quote(_short(log))}"),
        *((hint.purpose, hint.command.format(job=shlex.quote(job.id))) for hint in scheduler.HINTS),
        ("resume", f"cd {shlex.quote(_short(job.run_dir))} && {scheduler.SUBMIT_BY_HAND}"),
    ]
    lines = [f"{title + ':':<15}{text}" for title, text in rows]
    return "\n".join([f"job {job.id} ({request.name}) submitted: {size}{array}", *lines]) + "\n"


def _wait(job: Submitted, scheduler: Scheduler) -> int:
    def write(piece: bytes) -> None:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    try:
        return follow(job, scheduler, write, sys.stderr.write)
    except KeyboardInterrupt:
        sys.stderr.write(
            f"paceline: no longer following job {job.id}; it continues. Stop it: "
            f"{stop_command(scheduler, job)}\n"
        )
        return 130


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)

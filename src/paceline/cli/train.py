"""`paceline train`: train a named model on named data."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.rank_options import add_rank_options, read_rank_options
from paceline.errors import Interrupted

if TYPE_CHECKING:
    from paceline.config.run import RunConfig
    from paceline.training.trainer import Result


_QUICK_BYTES = 4 << 20
"""Of the events of a run, so many are read at its end: a tenth of a second."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from paceline.config.flags import add_flags

    parser = commands.add_parser(
        "train",
        usage="paceline train [MODEL [TRAIN [VAL]]] [-n RANKS] [option ...]",
        description="Train MODEL on TRAIN, validate on VAL. Example: paceline train mnist -n 2",
        epilog="All settings can be given in a YAML file (--config) or by --set; flags win over "
        "the file, --set over flags. docs/settings.md has them all. Exit code: 0 done, 2 wrong "
        "settings, 75 asked to stop (saved; continue with --resume), 130 the same by Ctrl-C, 1 "
        "anything else.",
    )
    add_rank_options(parser)
    parser.add_argument("--config", metavar="RUN.yaml", help="read settings from this file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set anything, for example --set optimizer.weight_decay=1e-4; may be repeated",
    )
    parser.add_argument("--summary", metavar="FILE.json", help="write the outcome for scripts")
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="write TensorBoard's files into the run directory",
    )
    add_flags(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    from paceline.cli.train_settings import read_levels
    from paceline.cluster.detect import detect
    from paceline.config.reading import read_config
    from paceline.config.stopping import SAVE_EVERY
    from paceline.launch.ranks import may_lose_hosts, start_or_join

    levels, notes = read_levels(args)
    _print_notes(notes)
    config = read_config(*levels)  # in the launcher too: wrong settings are found without ranks
    if args.tensorboard:
        from paceline.training.tensorboard import check_installed

        check_installed()
    elastic, rule = config.elastic, config.rule.resolve(lossy=config.exchange.lossy)
    # A rank alone cannot resume a run of workers that do not wait for each other.
    fewest = 2 if rule.exchange_kind in ("centre", "gossip") else 1
    request = read_rank_options(args, elastic.enabled, max(elastic.min, fewest), elastic.replace)
    if (args.restarts or request.elastic) and not detect().launched:
        config, given = _fix_run_dir(config, given)
        if request.elastic and config.checkpoint_every is None and may_lose_hosts(request):
            given = [*given, "--checkpoint-every", SAVE_EVERY]
    resume = [] if config.resume not in (None, "auto") else ["--resume", "auto"]
    return start_or_join(
        request,
        given,
        lambda: _noting(_train(config, args.summary, args.tensorboard)),
        lambda: [*given, *resume],
        rescue=partial(_rescue, config),
    )


def _rescue(config: RunConfig, memory: Path | None) -> bool:
    """Copy the newest checkpoint in node memory to the run directory, if that has only older
    ones; whether it has one then."""
    from paceline.checkpoint.node_saver import copy_newest
    from paceline.training.resume.resumed import FOLDER
    from paceline.training.run_dir import find_run_dir

    run_dir = find_run_dir(config) or Path(config.run_dir or "")
    return copy_newest(None if memory is None else memory / FOLDER, run_dir / FOLDER)


def _noting(code: int) -> int:
    """The launcher of an elastic run hears it from us."""
    from paceline.runtime.world import note_exit_code

    note_exit_code(code)
    return code


def _fix_run_dir(config: RunConfig, given: list[str]) -> tuple[RunConfig, list[str]]:
    """A run that is restarted must find its directory again."""
    from paceline.training.run_dir import find_run_dir, make_fresh

    if config.resume not in (None, "auto"):
        return config, given
    found = find_run_dir(config) or Path(config.run_dir or make_fresh(config))
    config = config.model_copy(update={"run_dir": str(found)})
    return config, [*given, "--run-dir", str(found)]


def _print_notes(lines: Sequence[str]) -> None:
    """Say once, in the launcher or on the first rank, how an old run file was read."""
    from paceline.cluster.detect import detect
    from paceline.runtime.job_dir import RESTART

    if lines and RESTART not in os.environ and not detect().rank:
        sys.stderr.write("paceline: " + "\n  ".join(lines) + "\n")
        sys.stderr.flush()


def _train(config: RunConfig, summary: str | None, tensorboard: bool) -> int:
    from paceline.comm.rank0 import on_rank0
    from paceline.runtime.failure import fail
    from paceline.runtime.world import init, is_member
    from paceline.training.run_dir import check_writable
    from paceline.training.tensorboard import TensorBoard
    from paceline.training.trainer import Trainer

    world = init()
    try:
        if summary is not None:
            on_rank0(world, lambda: check_writable(Path(summary)))
        callbacks = [TensorBoard()] if tensorboard else []
        result = Trainer(config=config, callbacks=callbacks).fit()
        world = init()  # an elastic run may have lost ranks
        if world.rank == 0:
            _report(result, summary, world.size)
    except Interrupted as error:  # on all ranks, so none waits for another
        if init().rank == 0:
            sys.stdout.flush()
            sys.stderr.write(f"paceline: {error}\n")
            sys.stderr.flush()
        return error.code
    except BaseException as error:  # also SystemExit, from a user's model: other ranks wait
        world = init()
        if world.size == 1 and not is_member():
            raise
        fail(world, error)
    return 0


def _report(result: Result, summary: str | None, ranks: int) -> None:
    """Write the outcome for scripts, and print it for people."""
    from paceline.observe import render_final
    from paceline.observe.progress import has_terminal, read_width
    from paceline.observe.run_log import RunLog
    from paceline.observe.verdict import describe_verdict
    from paceline.training.loop.run import REMEDY
    from paceline.training.run_dir import write_json

    if summary is not None:
        write_json(Path(summary), result.summary)
    terminal = has_terminal(os.environ, sys.stdout)
    said = describe_verdict(result.summary), result.summary["advice"]
    render_final(result.history, sys.stdout, terminal, read_width(os.environ), ranks, *said)
    kept = io.StringIO()
    render_final(result.history, kept, False, None, ranks, *said)
    RunLog(result.run_dir, 0).write(kept.getvalue())
    page = _write_page(result.run_dir)
    if page is not None:
        sys.stdout.write(f"report: {_short(page)}\n")
    sys.stdout.write(f"run directory: {_short(result.run_dir)}\n")
    sys.stdout.flush()
    if result.summary["warning"] is not None:
        sys.stderr.write(f"paceline: warning: {result.summary['warning']}; {REMEDY}\n")


def _write_page(run_dir: Path) -> Path | None:
    """The report of the run. Whatever is wrong with it: the run itself is well."""
    from paceline.cli.report import REPORT
    from paceline.observe.page import write_report
    from paceline.observe.page.figures import read_run
    from paceline.observe.trial import TRIAL

    if TRIAL in os.environ:  # nobody looks at the runs of a trial
        return None
    try:
        write_report([read_run(run_dir, _QUICK_BYTES)], run_dir / REPORT)
    except Exception as error:
        sys.stderr.write(f"paceline: no report was written: {type(error).__name__}: {error}\n")
        return None
    return run_dir / REPORT


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path

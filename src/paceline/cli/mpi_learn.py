"""`paceline mpi-learn`: the command line of mpi_learn's MPIDriver.py."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.rank_options import add_rank_options, read_rank_options
from paceline.cluster.detect import detect
from paceline.errors import ConfigError, Interrupted
from paceline.launch.ranks import start_or_join
from paceline.runtime.failure import fail
from paceline.runtime.world import init

if TYPE_CHECKING:
    from paceline.mpi_learn import Algo, ModelBuilder
    from paceline.mpi_learn.process import MPIProcess

_BETA = 0.9

_Options = dict[str, Any]
"""What argparse is told of a flag."""

_FLAGS: tuple[tuple[str, _Options], ...] = (
    ("--tf", {"action": "store_true", "help": "Keras uses TensorFlow"}),
    ("--torch", {"action": "store_true", "help": "the model is a torch module"}),
    ("--model_weights", {"metavar": "FILE", "help": "initial weights of the model"}),
    ("--trial-name", {"default": "train", "help": "part of the history's name (default train)"}),
    ("--features-name", {"default": "features", "help": "dataset of the inputs"}),
    ("--labels-name", {"default": "labels", "help": "dataset of the targets"}),
    ("--batch", {"type": int, "default": 100, "help": "samples per batch (default 100)"}),
    ("--cache-data", {"metavar": "DIR", "help": "copy the files to DIR on each node, once"}),
    (
        "--masters",
        {"type": int, "default": 1, "help": "ranks that hold the centre (default 1; 0: all train)"},
    ),
    ("--synchronous", {"action": "store_true", "help": "all workers exchange at once"}),
    ("--epochs", {"type": int, "default": 1, "help": "times through the data (default 1)"}),
    ("--optimizer", {"default": "adam", "help": "the master's: sgd, adadelta, rmsprop, adam"}),
    ("--loss", {"default": "binary_crossentropy", "help": "(default binary_crossentropy)"}),
    ("--early-stopping", {"metavar": "N", "help": "validations without a lower val_loss"}),
    ("--target-metric", {"metavar": "WHAT", "help": "stop when reached: val_acc,>,0.97"}),
    ("--worker-optimizer", {"default": "sgd", "help": "the workers' own (default sgd)"}),
    (
        "--worker-optimizer-params",
        {"default": "{}", "metavar": "DICT", "help": "its settings, as {'lr': 0.1}"},
    ),
    ("--sync-every", {"type": int, "default": 1, "help": "batches between updates (default 1)"}),
    ("--mode", {"help": "sgd or downpour (the default), or easgd"}),
    ("--easgd", {"action": "store_true", "help": "the same as --mode easgd"}),
    (
        "--elastic-force",
        {"type": float, "help": f"beta; each pull has beta / workers (default {_BETA})"},
    ),
    (
        "--elastic-lr",
        {"type": float, "help": "rate of the workers' sgd (default 1.0, or 0.05 where workers "
         "move by themselves: easgd, or --sync-every above 1)"},
    ),
    ("--elastic-momentum", {"type": float, "default": 0.0, "help": "its momentum (default 0)"}),
    ("--validate-every", {"type": int, "help": "updates between validations (default: an epoch)"}),
    ("--checkpoint", {"metavar": "DIR", "help": "run in DIR and save each epoch there"}),
    (
        "--restore",
        {
            "metavar": "DIR",
            "help": "resume the run in DIR; auto: that of --checkpoint, if it has begun",
        },
    ),
    ("--verbose", {"action": "store_true", "help": "print the loss of every batch"}),
)  # fmt: skip
"""Flags of MPIDriver.py that work as they did."""

_NEEDLESS: dict[str, tuple[_Options, str]] = {
    "--profile": ({"action": "store_true"}, "where time goes is in every run's summary"),
    "--monitor": ({"action": "store_true"}, "where time goes is in every run's summary"),
    "--trace": ({"action": "store_true"}, "every run writes its events to its run directory"),
    "--thread_validation": ({"action": "store_true"}, "nobody waits for a validation"),
    "--preload-data": ({"type": int}, "batches are always read ahead"),
    "--checkpoint-interval": ({"type": int}, "a checkpoint is saved each epoch, in background"),
    "--max-gpus": ({"type": int}, "ranks get GPUs in turn; CUDA_VISIBLE_DEVICES= keeps them off"),
    "--master-gpu": ({"action": "store_true"}, "masters do not compute gradients"),
    "--log-file": ({}, "history, events and summary are in the run directory"),
    "--log-level": ({}, "warnings are always shown"),
}
"""Flags that are accepted without effect, and why."""

_REFUSED: dict[str, tuple[_Options, str]] = {
    "--processes": ({"type": int}, "a worker is one rank; start more ranks (-n)"),
    "--n-processes": ({"type": int}, "a worker is one rank; start more ranks (-n)"),
    "--master-only": ({"action": "store_true"}, "train with one process instead: -n 1"),
    "--copy-command": ({}, "no command is run to copy files; --cache-data DIR copies them"),
    "--validate-fraction-every": ({"type": float}, "validation comes at the end of epochs"),
    "--gem-lr": ({"type": float}, "mode gem does not exist here"),
    "--gem-momentum": ({"type": float}, "mode gem does not exist here"),
    "--gem-kappa": ({"type": float}, "mode gem does not exist here"),
}
"""Flags that are refused, and why."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "mpi-learn",
        description="Train MODEL on the HDF5 files that TRAIN_LIST names, by Downpour SGD or "
        "EASGD. `paceline mpi-learn build mnist` (or mnist_pytorch) writes a model file as "
        "BuildModel.py did, `paceline data mnist DIR` the data.",
        epilog="Example: paceline mpi-learn mnist_arch.json train_mnist.list test_mnist.list "
        "--loss categorical_crossentropy --epochs 3 -n 3",
    )
    parser.add_argument("model", metavar="MODEL", help="model.json, .keras, .torch, or: build")
    parser.add_argument("train_data", metavar="TRAIN_LIST", help="list of training files")
    parser.add_argument("val_data", metavar="VAL_LIST", nargs="?", help="list of validation files")
    add_rank_options(parser)
    for flag, options in _FLAGS:
        usual: _Options = {} if "action" in options else {"metavar": flag.strip("-").upper()}
        parser.add_argument(flag, **(usual | options))
    for flags, word in ((_NEEDLESS, "not needed"), (_REFUSED, "refused")):
        for flag, (options, why) in flags.items():
            parser.add_argument(flag, default=None, help=f"{word}: {why}", **options)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    _check_refused(args)
    if args.model == "build":
        return _build(args)
    if args.val_data is None:
        raise ConfigError("VAL_LIST is missing: paceline mpi-learn MODEL TRAIN_LIST VAL_LIST")
    if args.restarts and args.checkpoint is None:
        raise ConfigError("--restarts needs --checkpoint DIR, from which the run can resume")
    _check_settings(args)
    again = [*given, "--restore", "auto"]
    return start_or_join(read_rank_options(args), given, lambda: _train(args), lambda: again)


def _check_refused(args: argparse.Namespace) -> None:
    for flag, (_, why) in _REFUSED.items():
        value = getattr(args, flag.strip("-").replace("-", "_"))
        if value is not None and not (flag.endswith("processes") and value == 1):
            raise ConfigError(f"{flag}: {why}")


def _build(args: argparse.Namespace) -> int:
    from paceline.mpi_learn.model_files import write_model

    path = write_model(args.train_data, Path(args.val_data or "."))
    sys.stdout.write(
        f"{path}\nnext: paceline mpi-learn {path} train_mnist.list test_mnist.list "
        "--loss categorical_crossentropy --epochs 3 -n 3\n"
    )
    return 0


def _check_settings(args: argparse.Namespace) -> None:
    """Find faults before ranks are started; report flags without effect, once."""
    _make_algo(args, workers=1)
    _make_builder(args)
    for name in (args.train_data, args.val_data):
        if not Path(name).is_file():
            raise ConfigError(f"there is no list {name} (looked for {Path(name).absolute()})")
    if (detect().rank or 0) == 0 and "PACELINE_LAUNCHER" not in os.environ:
        for flag, (_, why) in _NEEDLESS.items():
            if getattr(args, flag.strip("-").replace("-", "_")) is not None:
                sys.stderr.write(f"paceline: {flag} is not needed: {why}\n")


def _make_algo(args: argparse.Namespace, workers: int) -> Algo:
    from paceline.mpi_learn import Algo

    elastic = args.easgd or args.mode == "easgd"
    if args.easgd and args.mode not in (None, "easgd"):
        raise ConfigError(f"--easgd and --mode {args.mode}: give one of them")
    force = args.elastic_force
    if force is not None and not elastic:
        raise ConfigError("--elastic-force is for --mode easgd; omit it")
    if elastic and force is not None:
        force /= workers
    return Algo(
        None if elastic else args.optimizer,
        loss=args.loss,
        validate_every=args.validate_every,
        sync_every=args.sync_every,
        mode="easgd" if elastic else args.mode or "sgd",
        worker_optimizer=args.worker_optimizer,
        worker_optimizer_params=_read_params(args.worker_optimizer_params),
        elastic_force=force,
        elastic_lr=args.elastic_lr,
        elastic_momentum=args.elastic_momentum,
    )


def _read_params(text: str) -> dict[str, object]:
    try:
        params = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        params = None
    if not isinstance(params, dict):
        raise ConfigError(f"--worker-optimizer-params is {text!r}, expected {{'lr': 0.1, ...}}")
    return params


def _make_builder(args: argparse.Namespace) -> ModelBuilder:
    from paceline.mpi_learn import ModelFromJson, ModelFromJsonTF, ModelPytorch

    if args.tf and args.torch:
        raise ConfigError("--tf and --torch: give one of them")
    by_torch = args.torch or Path(args.model).suffix in ModelPytorch.suffixes
    kind = ModelPytorch if by_torch else ModelFromJsonTF if args.tf else ModelFromJson
    builder = kind(filename=args.model, weights=args.model_weights)
    builder.check()
    return builder


def _train(args: argparse.Namespace) -> int:
    world = init()
    try:
        _run_manager(args, world.size)
    except Interrupted as error:  # on all ranks: nobody waits
        if world.rank == 0:
            sys.stderr.write(f"paceline: {error}\n")
        return error.code
    except BaseException as error:  # also SystemExit: the others wait
        if world.size == 1:
            raise
        fail(world, error)
    return 0


def _run_manager(args: argparse.Namespace, ranks: int) -> None:
    from paceline.mpi_learn import H5Data, MPIManager

    masters = 0 if args.synchronous or ranks == 1 else args.masters
    saving: dict[str, Any] = {"checkpoint": args.checkpoint}
    if args.restore is not None:
        saving |= {"resume": args.restore, "checkpoint_every": "epoch"}
    if args.threads is not None:
        saving["threads"] = args.threads
    manager = MPIManager(
        None,
        H5Data(args.batch, args.cache_data, 0, args.features_name, args.labels_name),
        _make_algo(args, max(1, ranks - masters)),
        _make_builder(args),
        args.epochs,
        args.train_data,
        args.val_data,
        num_masters=args.masters,
        synchronous=args.synchronous,
        early_stopping=args.early_stopping,
        target_metric=args.target_metric,
        verbose=args.verbose,
        **saving,
    )
    manager.train()
    if manager.is_master:
        _report(args, manager.process)


def _report(args: argparse.Namespace, process: MPIProcess) -> None:
    from paceline.observe import render_final
    from paceline.observe.progress import has_terminal, read_width
    from paceline.observe.verdict import describe_verdict

    name = f"{Path(args.model).stem}_{args.trial_name}_history.json"
    given = {key: value for key, value in vars(args).items() if key != "function"}
    process.record_details(name, meta={"args": given})
    result, width = process.result, read_width(os.environ)
    assert result is not None, "it has been trained"
    terminal = has_terminal(os.environ, sys.stdout)
    said = describe_verdict(result.summary)
    render_final(result.history, sys.stdout, terminal, width, result.summary["ranks"], said)
    sys.stdout.write(f"run directory: {result.run_dir}\nhistory: {name}\n")
    sys.stdout.flush()

"""`paceline data`: write data sets as files to train on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paceline.data.builtin import digits
from paceline.data.builtin.mnist_files import FORMATS, list_of, read_mnist, write_files
from paceline.errors import ConfigError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "data",
        description="Write a data set as files of samples, and lists of them to train on.",
    )
    kinds = parser.add_subparsers(dest="kind", metavar="SET", required=True)
    mnist = kinds.add_parser(
        "mnist",
        help="MNIST in many files, as mpi_learn's get_mnist writes it",
        description="Write MNIST into DIR: mnist_train_0.h5, ..., mnist_test_0.h5, ... and the "
        "lists train_mnist.list and test_mnist.list. Each file has features (n, 28, 28, 1) as "
        "float32 from 0 to 1 and labels (n, 10), one-hot. Example: paceline data mnist mnist",
    )
    mnist.add_argument("folder", metavar="DIR", type=Path, help="where to write")
    mnist.add_argument(
        "--format", choices=FORMATS, default="hdf5", help="of the files (default hdf5)"
    )
    mnist.add_argument(
        "--files",
        type=int,
        default=24,
        metavar="N",
        help="training files; there is a sixth as many test files (default 24)",
    )
    mnist.add_argument(
        "--from",
        dest="origin",
        choices=("mnist", "digits"),
        default="mnist",
        help="the full set (default), or the 10,000 + 2,000 digits that come with Paceline",
    )
    mnist.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where the full MNIST is (default: $PACELINE_DATA, then the cache, else downloaded)",
    )
    mnist.add_argument("--force", action="store_true", help="replace what is there")
    mnist.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    if args.origin == "digits" and args.data_dir is not None:
        raise ConfigError("--data-dir is for the full MNIST only, and --from is digits")
    read_part = digits.read_part if args.origin == "digits" else read_mnist(args.data_dir)
    named = write_files(
        args.folder, read_part, format=args.format, files=args.files, force=args.force
    )
    counts = " and ".join(
        f"{len(paths)} {part} file{'s' * (len(paths) > 1)}" for part, paths in named.items()
    )
    lists = " ".join(str(list_of(args.folder, part)) for part in named)
    sys.stdout.write(f"wrote {counts} to {args.folder}; next: paceline train MODEL {lists}\n")
    return 0

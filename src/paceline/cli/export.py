"""`paceline export`: the plain model of a run, for use without Paceline."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paceline.training.resume.export import NEWEST, export_model


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export",
        description="Write the model of a run to a file for use without Paceline: what the "
        "finished run saved, or that of its newest checkpoint. Example: paceline export "
        "runs/20260131-154502-mnist-bsp model.pt",
        usage="paceline export RUN FILE [--checkpoint [NAME]] [--force]",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the directory of the run")
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="its suffix selects the format: .safetensors, .pt (a torch state_dict), .npz, or "
        ".keras for a Keras model",
    )
    parser.add_argument(
        "--checkpoint",
        nargs="?",
        const=NEWEST,
        metavar="NAME",
        help="export a checkpoint even if the run has finished: the newest valid one, or that of "
        "this name or step",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace, given: list[str]) -> int:
    exported = export_model(args.run, args.file, args.checkpoint, args.force, _warn)
    sys.stdout.write(f"{exported.describe()}\n")
    return 0


def _warn(text: str) -> None:
    sys.stderr.write(f"paceline: {text}\n")

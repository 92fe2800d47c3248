"""A config of Theano-MPI, and a language model, as a user starts them."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "bsp_2016.yaml"


def test_a_config_of_theano_mpi_trains(paceline, tmp_path):
    told = tmp_path / "told.json"
    options = ("--epochs", "1", "--lr", "0.1", "--summary", str(told), "--run-dir", "run")
    done = paceline("train", "--config", str(EXAMPLE), "-n", "2", *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("in Paceline they are:") == 1  # by one process of three
    assert "\n  avg_freq: 2 -> rule.every: 2\n" in done.stderr
    assert "n_epochs: 2 -> epochs: 2 (the command line overrides it)" in done.stderr
    assert "2 ranks on 1 node, rule average" in done.stdout
    summary = json.loads(told.read_text())
    assert summary["val_accuracy"] > 0.85, summary
    rule = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["rule"]
    assert (rule["name"], rule["every"]) == ("average", 2)


def test_a_language_model_trains_on_two_ranks(paceline, tmp_path):
    """Sentences that count upwards, from anywhere: what comes next is easy to tell."""
    tokens = (np.arange(17) + np.arange(256)[:, None] * 3) % 64
    np.savez(tmp_path / "counting.npz", x=tokens[:, :-1], y=tokens[:, 1:])
    told = tmp_path / "told.json"
    options = ("--optimizer", "adam", "--lr", "0.003", "--batch-size", "16", "--epochs", "3")
    files = ("counting.npz", "counting.npz")
    end = ("--summary", str(told))
    done = paceline("train", "transformer", *files, "-n", "2", *options, *end, timeout_s=110)
    assert done.returncode == 0, done.stderr
    summary = json.loads(told.read_text())
    assert summary["val_accuracy"] > 0.5, summary  # by chance 1/64

"""`paceline bench`: what it refuses before it measures."""

import pytest


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_places_that_cannot_be_written_are_found_before_measuring(command, tmp_path, option):
    (tmp_path / "file").write_text("")
    done = command("bench", "allreduce", "--quick", option, "file/rows.svg")
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: file/rows.svg cannot be written: ")


def test_an_unknown_peer_is_refused(command):
    done = command("bench", "allreduce", "--against", "nccl")
    assert done.returncode == 2
    assert "invalid choice: 'nccl'" in done.stderr


def test_an_unknown_network_is_refused(command):
    done = command("bench", "step", "--networks", "resnet")
    assert done.returncode == 2
    assert "'resnet'" in done.stderr
    assert "alexnet" in done.stderr


@pytest.mark.parametrize("quick", [(), ("--quick",)])
def test_a_place_without_mnist_is_told_before_hosts_are_made(command, quick):
    done = command("bench", "link", "--data-dir", "nowhere", *quick)
    assert done.returncode == 1
    assert done.stderr.startswith("DataError: MNIST is not in nowhere")


def test_a_wrong_rate_is_refused(command):
    done = command("bench", "link", "--quick", "--rate", "fast")
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: the rate is 'fast', expected a whole number and")


def test_ranks_of_another_launcher_are_refused(command):
    ranks = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    done = command("bench", "link", "--quick", **ranks)
    assert done.returncode == 1
    assert done.stderr.startswith("LaunchError: bench link starts its own ranks; call it once")
    done = command("bench", "allreduce", "--quick", **ranks)
    assert done.returncode == 1
    assert "openmpi started this as one of 2 ranks" in done.stderr

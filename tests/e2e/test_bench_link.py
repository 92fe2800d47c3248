"""`paceline bench link`: two hosts, a slow network, every rule and DDP, for real.

What is refused before hosts are made is in tests/unit/cli.
"""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from support.commands import PACELINE, run_program, started
from support.ranks import FULL_MNIST

from paceline.errors import ConfigError, LaunchError
from paceline.tools.bench.hosts import NAMES, Hosts, check_means
from paceline.tools.bench.link import run_in_hosts

PARAMETERS = 785 * 256 + 257 * 256 + 257 * 10
"""Of the small network that --quick trains."""
RULES = [
    *("bsp float32", "bsp bfloat16", "bsp float16", "bsp int8", "bsp powersgd"),
    *(
        "average every 16",
        "diloco every 16",
        "easgd every 16 overlap",
        "downpour every 16 overlap",
    ),
]


def _why_not() -> str:
    try:
        check_means()
    except ConfigError as error:
        return str(error)
    return ""


needs_hosts = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "never")


def measure(paceline, tmp_path, *options):
    """The rows by unit and rule, and what was said meanwhile."""
    command = ("bench", "link", "--quick", "--rounds", "1", "--json", "rows.json", *options)
    done = paceline(*command, timeout_s=270, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    by_unit = {unit: {} for unit in ("samples/s", "bytes", "s")}
    for row in rows:
        assert list(row["peers"]) == ["ddp-gloo"]
        by_unit[row["unit"]][row["case"].split(",")[0]] = row
    assert all(list(found) == RULES for found in by_unit.values())
    assert list(tmp_path.iterdir()) == [tmp_path / "rows.json"], "the hosts' folder is gone"
    return by_unit, done.stderr


@needs_hosts
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_rule_trains_between_two_hosts_beside_ddp(paceline, tmp_path):
    rows, said = measure(paceline, tmp_path)
    step = 4 * PARAMETERS / 64  # bytes per sample of one vector per step
    sent = {rule: row["ours"] for rule, row in rows["bytes"].items()}
    assert rows["bytes"]["bsp int8"]["peers"]["ddp-gloo"] == pytest.approx(step, rel=0.05)
    assert sent["bsp float32"] == pytest.approx(step, rel=0.05)
    assert sent["bsp bfloat16"] == pytest.approx(step / 2, rel=0.05)
    assert sent["bsp float16"] == pytest.approx(step / 2, rel=0.05)
    assert sent["bsp int8"] == pytest.approx(step / 4, rel=0.05)
    assert sent["bsp powersgd"] < step / 8
    for rule in RULES[5:]:
        assert sent[rule] == pytest.approx(step / 16, rel=0.1)
    assert all(row["ours"] > 0 for row in rows["samples/s"].values())
    for rule, row in rows["s"].items():
        assert row["case"] == f"{rule}, 1gbit, time to 90 %"
        reached = row["notes"]["accuracy"] >= 0.9
        assert reached or row["notes"]["not reached"] == "ours"
        assert row["ours"] > 0
    assert "training on digits (train), 10000 images" in said


@needs_hosts
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_slower_link_bounds_what_sends_every_step(paceline, tmp_path):
    rows, _ = measure(paceline, tmp_path, "--rate", "100mbit")
    most = 1e8 / 8 / (4 * PARAMETERS) * 2 * 64  # samples of two hosts, a vector each way per step
    both = rows["samples/s"]["bsp float32"]
    assert 0 < both["ours"] < 1.1 * most
    assert 0 < both["peers"]["ddp-gloo"] < 1.1 * most
    assert both["case"] == "bsp float32, 100mbit"
    assert rows["samples/s"]["average every 16"]["ours"] > both["ours"]


@needs_hosts
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(FULL_MNIST is None, reason="PACELINE_DATA does not say where MNIST lies")
def test_the_full_mnist_is_taken_from_where_it_is_said_to_be(paceline, tmp_path):
    _, said = measure(paceline, tmp_path, "--data-dir", FULL_MNIST)
    assert "training on mnist (train), 60000 images" in said


def test_who_is_not_root_is_told(tmp_path):
    code = (
        "import os\nfrom paceline.cli import main\n"
        "main(['bench', 'link', '--rate', 'none'])\n"  # all is read now: it may be root's
        "if os.geteuid() == 0: os.seteuid(65534)\n"
        "raise SystemExit(main(['bench', 'link', '--quick']))"
    )
    done = run_program([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith(
        "ConfigError: hosts cannot be made here: root is needed, and this is another user\n"
    )


@needs_hosts
@pytest.mark.slow
def test_an_interrupt_ends_the_ranks_and_both_hosts(tmp_path):
    words = ("bench", "link", "--quick")
    with started([PACELINE, *words], tmp_path, TMPDIR=str(tmp_path)) as job:
        while "samples/s" not in job.stderr.readline():
            assert job.poll() is None
        folder = next(tmp_path.glob("paceline-hosts-*"))
        assert len(_ranks(folder)) >= 2
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=90)
    assert job.returncode == 130
    assert errors.endswith("paceline: interrupted\n")
    assert _ranks(folder) == []
    assert list(tmp_path.iterdir()) == []


def _ranks(folder):
    """Processes whose command line names the folder: mpirun and the ranks of both hosts."""
    lines = Path("/proc").glob("[0-9]*/cmdline")
    return [path for path in lines if str(folder).encode() in _read(path)]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


@pytest.fixture
def program(tmp_path):
    """A file with a function of ranks; gives what `run_in_hosts` calls it."""

    def write(body):
        path = tmp_path / "of_ranks.py"
        path.write_text(f"import os\n\n\ndef work(world, settings):\n    {body}\n")
        return f"{path}:work"

    return write


@needs_hosts
@pytest.mark.slow
def test_each_host_is_a_node_of_its_own_with_its_part_of_the_cores(program, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    name = program(
        "threads = os.environ['OMP_NUM_THREADS']; "
        "return world.allgather_values([world.node, world.node_ranks, threads])"
    )
    with Hosts() as hosts:
        found = run_in_hosts(hosts, name, {}, timeout_s=60)
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert [facts[:2] for facts in found] == [[NAMES[0], [0]], [NAMES[1], [1]]]
    assert all(1 <= int(facts[2]) <= int(threads) for facts in found)


@needs_hosts
@pytest.mark.slow
def test_a_rank_that_fails_in_the_second_host_ends_all(program, capfd):
    name = program("1 / (1 - world.rank); world.barrier()")
    with (
        Hosts() as hosts,
        pytest.raises(LaunchError, match=r"in 2 hosts ended with exit code 1"),
    ):
        run_in_hosts(hosts, name, {}, timeout_s=60)
    errors = capfd.readouterr().err
    assert re.search(rf"ZeroDivisionError on rank 1 \({NAMES[1]}\); all ranks", errors)


@needs_hosts
@pytest.mark.slow
def test_bytes_are_those_that_a_host_has_sent_over_the_link(program):
    name = program(
        "import numpy; from paceline.comm import wait_until; "
        "from paceline.tools.bench.ranks.link import bytes_sent; "
        "before, buffer = bytes_sent(), numpy.ones(10**6, numpy.float32); "
        "wait_until((world.irecv(buffer) if world.rank else world.isend(buffer, to=1)).done); "
        "world.barrier(); return world.allgather_values(bytes_sent() - before)"
    )
    with Hosts() as hosts:
        sender, receiver = run_in_hosts(hosts, name, {}, timeout_s=60)
    assert 4e6 < sender < 5e6
    assert receiver < 1e6

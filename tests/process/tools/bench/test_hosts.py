"""Hosts made of namespaces: the real ones, where root runs the tests."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from paceline.errors import ConfigError, LaunchError
from paceline.launch.job import Machine, Mpirun
from paceline.tools.bench import hosts as module
from paceline.tools.bench.hosts import ADDRESSES, INTERFACE, NAMES, Hosts, check_means

MACHINE = Machine(cores=4, numa_nodes=2, is_root=True, environ={})


def _why_not() -> str:
    try:
        check_means()
    except ConfigError as error:
        return str(error)
    return ""


needs_hosts = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "never")


SERVE = """
import socket, sys, time
wanted_bits, enough = int(sys.argv[1]), float(sys.argv[2])
with socket.create_server(("0.0.0.0", 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
end, found = time.monotonic() + 60, 0.0
while found < enough and time.monotonic() < end:
    began, left = time.perf_counter(), wanted_bits // 8
    connection.sendall(b"more, please")
    while left:
        left -= len(connection.recv(min(left, 1 << 20)))
    found = wanted_bits / (time.perf_counter() - began)
    print(found, flush=True)
"""

SEND = """
import socket, sys
data = bytes(int(sys.argv[2]) // 8)
with socket.create_connection((sys.argv[1], 5000), timeout=100) as connection:
    while connection.recv(100):
        connection.sendall(data)
"""


@pytest.fixture(scope="module")
def hosts():
    with Hosts("1gbit") as made:
        yield made


def tell(hosts, host, *command):
    """What a command in the host says."""
    done = subprocess.run(
        [*hosts.enter(host), *command], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def members(namespace):
    """Processes in that network namespace, by the machine's own numbers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found += [entry.parts[2]] if str(entry.readlink()) == namespace else []
        except OSError:  # it has ended meanwhile
            continue
    return found


def links():
    """Which of our links the machine has: what others have may come and go."""
    ours = {INTERFACE, module._BRIDGE, *(module._port(host) for host in (0, 1))}
    return ours & {name for _, name in socket.if_nameindex()}


def mounts(hosts):
    return [
        line for line in Path("/proc/mounts").read_text().splitlines() if str(hosts.folder) in line
    ]


@needs_hosts
def test_each_host_has_its_own_name_and_shared_memory(hosts):
    assert [tell(hosts, host, "hostname").strip() for host in (0, 1)] == list(NAMES)
    memories = [tell(hosts, host, "stat", "-c", "%d", "/dev/shm") for host in (0, 1)]
    assert len({*memories, f"{Path('/dev/shm').stat().st_dev}\n"}) == 3
    assert socket.gethostname() not in NAMES


@needs_hosts
def test_hosts_know_each_other_by_name_and_the_machine_does_not(hosts):
    ask = f"import socket; print(*map(socket.gethostbyname, {NAMES}), socket.gethostname())"
    for host in (0, 1):
        assert tell(hosts, host, sys.executable, "-c", ask).split() == [*ADDRESSES, NAMES[host]]
    assert not any(name in Path("/etc/hosts").read_text() for name in NAMES)


@needs_hosts
@pytest.mark.parametrize(("rate", "bits_per_s"), [("1gbit", 1e9), ("100mbit", 1e8)])
def test_the_link_carries_what_was_asked_for(rate, bits_per_s):
    """Never more, and half of it as soon as the sender gets a core for a tenth of a second."""
    bits, burst_bits = int(0.1 * bits_per_s), 8 * 256 * 1024
    with Hosts(rate) as hosts:
        serve = [sys.executable, "-c", SERVE, str(bits), str(0.5 * bits_per_s)]
        server = subprocess.Popen([*hosts.enter(1), *serve], stdout=subprocess.PIPE, text=True)
        assert server.stdout.readline() == "ready\n"
        tell(hosts, 0, sys.executable, "-c", SEND, NAMES[1], str(bits))
        measured = [float(line) for line in server.communicate(timeout=60)[0].splitlines()]
    assert max(measured) > 0.5 * bits_per_s
    assert max(measured) < 1.1 * bits_per_s * bits / (bits - burst_bits)


@needs_hosts
def test_mpirun_reaches_the_second_host_by_the_agent(hosts):
    argv, _ = hosts.render_ranks(["true"], 1, Mpirun("mpirun", "openmpi"), MACHINE)
    agent = argv[argv.index("plm_ssh_agent") + 1]
    assert tell(hosts, 0, agent, NAMES[1], "hostname;", "echo", "a  b").split() == [
        *(NAMES[1], "a", "b")
    ]
    done = subprocess.run(
        [*hosts.enter(0), agent, "elsewhere", "true"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "there is no host elsewhere\n")


@needs_hosts
def test_ranks_are_placed_one_on_each_host_and_not_bound(hosts):
    argv, extra = hosts.render_ranks(["a", "b"], 2, Mpirun("/opt/mpirun", "openmpi"), MACHINE)
    at = argv.index("/opt/mpirun")
    assert argv[:at] == hosts.enter(0)
    assert argv[at + 1 : at + 3] == ["--host", f"{NAMES[0]}:1,{NAMES[1]}:1"]
    assert argv[-4:] == ["--bind-to", "none", "a", "b"]
    assert (extra["OMP_NUM_THREADS"], extra["TMPDIR"]) == ("2", str(hosts.folder))


@needs_hosts
@pytest.mark.parametrize("end", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind(end):
    before = links()
    with pytest.raises(end) if end else nullcontext(), Hosts() as hosts:
        namespace = tell(hosts, 1, "readlink", "/proc/self/ns/net").strip()
        stay = [*hosts.enter(1), "sh", "-c", "echo here; exec sleep 60"]
        deserted = subprocess.Popen(stay, start_new_session=True, stdout=subprocess.PIPE, text=True)
        assert deserted.stdout.readline() == "here\n"
        assert INTERFACE in tell(hosts, 1, "ip", "link")
        assert len(members(namespace)) == 2, "the keeper of the host, and the sleeper"
        if end is not None:
            raise end
    deserted.communicate(timeout=60)
    assert deserted.returncode != 0
    assert members(namespace) == []
    assert links() == before
    assert mounts(hosts) == []
    assert not hosts.folder.exists()


@needs_hosts
def test_hosts_end_with_us_even_when_we_are_killed(tmp_path):
    code = (
        "import subprocess\nfrom paceline.tools.bench.hosts import Hosts\n"
        "with Hosts() as hosts:\n"
        "    stay = 'readlink /proc/self/ns/net; exec sleep 60'\n"
        "    subprocess.run([*hosts.enter(1), 'sh', '-c', stay], start_new_session=True)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    namespace = owner.stdout.readline().strip()
    assert members(namespace)
    owner.send_signal(signal.SIGKILL)
    owner.wait(timeout=60)
    end = time.monotonic() + 60
    while members(namespace) and time.monotonic() < end:
        time.sleep(0.05)
    assert members(namespace) == []


@needs_hosts
def test_a_host_that_cannot_be_made_says_why_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(module.tempfile, "tempdir", None)
    monkeypatch.setattr(module, "_FURNISH", "echo out of {name} >&2; exit 1")
    before = links()
    with pytest.raises(LaunchError, match=f"could not be made: out of {NAMES[0]}"), Hosts():
        pass
    assert links() == before
    assert list(tmp_path.iterdir()) == []


@needs_hosts
def test_a_link_that_cannot_be_made_is_told_in_the_words_of_ip(monkeypatch):
    monkeypatch.setattr(module, "INTERFACE", "far-too-long-a-name")
    with pytest.raises(LaunchError, match=r"ip link add far-too-long-a-name .*: "), Hosts():
        pass

"""What the doctor starts: a trial, and programs on hosts that answer."""

import socket
import sys
import time

from paceline.cluster.hosts import SSH, Host
from paceline.cluster.schedulers.interface import Allocation
from paceline.tools.doctor import reach, world
from paceline.tools.doctor.diagnose import Question, choose_remote_shell
from paceline.tools.doctor.reach import try_both_ways
from paceline.tools.doctor.world import run_trial


def test_a_trial_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(world.sys, "executable", "/bin/sleep")
    monkeypatch.setattr(world, "_arguments", lambda options: ["60"])
    began = time.monotonic()
    ended = run_trial([], timeout_s=0.2)
    assert time.monotonic() - began < 30  # not what it sleeps
    assert ended.seen is None
    assert "within 0 s" in ended.said


def test_hosts_of_grid_engine_are_reached_by_ssh_where_it_cannot_be_asked(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    granted = Allocation("sge", (Host("a", 1), Host("b", 1)))
    assert choose_remote_shell(Question(allocation=granted)) == SSH


def test_both_ways_are_tried(tmp_path):
    line = f"{sys.executable} -m paceline.tools.doctor.reach"
    assert try_both_ways("localhost", ["sh", "-c", line], ["127.0.0.1"]) == reach.Reach("", "")


def test_a_way_that_is_blocked_is_told():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # nobody listens
        talk = f"echo hello; echo port {port}; echo back 10.0.0.1: timed out; echo ignored:"
        found = try_both_ways("localhost", ["sh", "-c", talk], ["127.0.0.1"])
    assert "refused" in found.there
    assert found.back == "10.0.0.1: timed out"


def test_a_host_that_says_nothing_is_told():
    found = try_both_ways("localhost", ["sh", "-c", "echo no python >&2; false"], ["127.0.0.1"])
    assert found == reach.Reach("no python", "no python")

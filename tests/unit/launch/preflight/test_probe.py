"""What the probe reads of a node; roots of file systems and environments are made up."""

from pathlib import Path

import pytest

from paceline.errors import LaunchError
from paceline.launch.preflight.node_info import NodeInfo, from_json, to_json
from paceline.launch.preflight.probe import digest, explain


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_facts_travel_as_one_line():
    facts = NodeInfo(host="n1", affinity=[0, 2], interfaces={"lo": ["127.0.0.1"]}, ulfm=True)
    text = to_json(facts)
    assert "\n" not in text
    assert from_json(text) == facts


def test_what_a_shell_says_around_the_facts_is_left_out():
    assert from_json(f"{{welcome}}\n{to_json(NodeInfo(host='n1'))}\n[bye]\n").host == "n1"


def test_facts_of_another_version_are_read_as_far_as_they_are_known():
    assert from_json('{"host": "n1", "of a later version": 1}') == NodeInfo(host="n1")


def test_words_without_facts_are_refused():
    with pytest.raises(LaunchError, match="printed nothing readable: 'hello'"):
        from_json("hello\n")


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("Open MPI v5.0.11, package: ...", "openmpi"),
        ("MPICH Version:      5.0.2\nMPICH Release date: ...", "mpich"),
        ("Intel(R) MPI Library 2021.9 for Linux* OS", "intel"),
        ("Something", "unknown"),
        (None, None),
    ],
)
def test_the_library_names_the_mpirun_that_fits(version, kind):
    assert NodeInfo(libmpi_version=version).libmpi_kind == kind


def test_the_digest_changes_with_contents_and_names(tmp_path):
    write(tmp_path, "a.py", "x = 1")
    first = digest(tmp_path)
    write(tmp_path, "note.txt", "not Python")
    assert digest(tmp_path) == first
    write(tmp_path, "a.py", "x = 2")
    second = digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, digest(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("path", "env", "why"),
    [
        ("/site/lib/libmpi.so", {"MPI4PY_LIBMPI": "/site/lib/libmpi.so"}, "MPI4PY_LIBMPI is /site"),
        ("/venv/lib/libmpi.so", {"MPI4PY_MPIABI": "mpich"}, "MPI4PY_MPIABI is mpich"),
        ("/venv/lib/libmpi.so.40", {"LD_LIBRARY_PATH": "/site"}, "environment of this Python"),
        ("/site/lib/libmpi.so.12", {"LD_LIBRARY_PATH": "/x:/site/lib"}, "on LD_LIBRARY_PATH"),
        ("/usr/lib/libmpi.so.12", {"LD_LIBRARY_PATH": ":"}, "the system's"),
        (None, {}, "linked into mpi4py"),
    ],
)
def test_why_a_library_was_taken(path, env, why):
    assert why in explain(path, env, "/venv")

"""`paceline run`: any script, on any number of ranks.

A rank that must be ended by others waits for an hour: that the command returns at all shows that it
was. What is refused before ranks start is in tests/unit/cli.
"""

import re
import signal
from pathlib import Path

import pytest
from support.commands import PACELINE, started

FOR_AN_HOUR = "time.sleep(3600)"
OUT_OF_LUCK = "raise RuntimeError('out of luck')"


@pytest.fixture
def script(tmp_path):
    def write(code):
        (tmp_path / "program.py").write_text(code)
        return "program.py"

    return write


def folder_of(text):
    """Where the job had its shared memory, and how much was in it while it ran."""
    folder, held = re.search(r"inside (\S+) (\d+)$", text, re.MULTILINE).groups()
    return Path(folder), int(held)


SHOW_FOLDER = """
import os, sys, time, paceline
world = paceline.init()
world.barrier()
folder = os.environ["PACELINE_JOB_DIR"]
os.write(1, f"inside {folder} {len(os.listdir(folder))}\\n".encode())
world.barrier()
"""
needs_shm = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm on this system")


def test_a_script_runs_on_every_rank_with_its_arguments(paceline, script):
    name = script(f"{SHOW_FOLDER}\nprint(world.rank, world.size, __name__, sys.argv, flush=True)\n")
    done = paceline("run", "-n", "3", "--", name, "--flag", "a b")
    assert done.returncode == 0, done.stderr
    expected = "3 __main__ ['program.py', '--flag', 'a b']"
    lines = [line for line in done.stdout.splitlines() if not line.startswith("inside")]
    assert sorted(lines) == [f"{rank} {expected}" for rank in range(3)]
    place, _ = folder_of(done.stdout)
    assert not place.exists()


def test_one_rank_needs_no_mpi_and_finds_its_siblings(paceline, script, tmp_path):
    (tmp_path / "sibling.py").write_text("value = 42\n")
    name = script(
        "import sys, paceline, sibling\n"
        "print(paceline.init().size, 'mpi4py.MPI' in sys.modules, sibling.value)\n"
    )
    done = paceline("run", "-n", "1", "--", name)
    assert done.stdout.split() == ["1", "False", "42"]


def test_a_module_can_be_run(paceline, tmp_path):
    (tmp_path / "pack.py").write_text("import sys; print('as', __name__, sys.argv[1:])\n")
    done = paceline("run", "-n", "1", "--", "-m", "pack", "x")
    assert done.stdout.strip() == "as __main__ ['x']"


@needs_shm
@pytest.mark.parametrize(
    "wait", ["world.barrier()", pytest.param(FOR_AN_HOUR, marks=pytest.mark.slow)]
)
def test_an_exception_on_one_rank_ends_all_and_leaves_no_memory(paceline, script, wait):
    name = script(f"{SHOW_FOLDER}\nif world.rank == 1: {OUT_OF_LUCK}\n{wait}\n")
    done = paceline("run", "-n", "3", "--", name)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: out of luck") == 1
    assert re.search(r"RuntimeError on rank 1 \(\S+\); all ranks were ended", done.stderr)
    assert "prterun" not in done.stderr
    place, held = folder_of(done.stdout)
    assert place.is_relative_to("/dev/shm")
    assert held > 0, "the job has its segments there"
    assert not place.exists()


@pytest.mark.slow
@needs_shm
@pytest.mark.parametrize("end", ["os._exit(3)", "pass"])
def test_no_shared_memory_is_left_behind(paceline, script, end):
    name = script(f"{SHOW_FOLDER}\nif world.rank == 1: {end}\nworld.barrier()\n")
    done = paceline("run", "-n", "2", "--", name)
    assert done.returncode == (0 if end == "pass" else 3)
    place, held = folder_of(done.stdout)
    assert held > 0
    assert not place.exists()


def test_ranks_that_fail_at_one_moment_say_it_once(paceline, script):
    path = script(
        "import time\n"
        "import paceline\n"
        "from paceline.errors import LaunchError\n"
        "from paceline.runtime import failure\n"
        "failure.wait_for_turn = lambda rank: time.sleep(0.01 * rank)\n"
        "paceline.init().barrier()\n"
        "raise LaunchError('for one reason')\n"
    )
    done = paceline("run", "-n", "2", "--", path)
    assert done.returncode == 1
    assert done.stderr.count("for one reason") == 1, done.stderr


def test_an_exception_without_mpi_ends_all(paceline, script):
    name = script(
        "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        f"    {OUT_OF_LUCK}\n{FOR_AN_HOUR}\n"
    )
    done = paceline("run", "-n", "2", "--", name)
    assert done.returncode == 1
    assert "RuntimeError: out of luck" in done.stderr


@pytest.mark.slow
def test_a_script_that_starts_mpi_by_itself_is_ended_too(paceline, script):
    name = script(
        f"from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: {OUT_OF_LUCK}\n"
        "MPI.COMM_WORLD.Barrier()\n"
    )
    done = paceline("run", "-n", "2", "--", name)
    assert done.returncode == 1
    assert re.search(r"RuntimeError on rank 1 \(\S+\)", done.stderr)


@pytest.mark.slow
def test_a_seed_holds_even_if_building_imports_the_framework(paceline, script):
    name = script(
        "import sys, paceline, numpy as np\n"
        "def build():\n    from torch import nn\n    return nn.Linear(2, 1)\n"
        "assert 'torch' not in sys.modules\n"
        "data = np.ones((8, 2)), np.ones(8)\n"
        "r = paceline.Trainer(build, data, loss='mse', epochs=1, progress='off').fit()\n"
        "print(r.summary['train_loss'])\n"
    )
    first, second = (paceline("run", "-n", "1", "--", name) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout


ASKED, KEPT = ("--threads", "2"), ()


@pytest.mark.parametrize(
    ("ranks", "words", "threads"),
    [
        ("2", ASKED, "2"),
        ("1", KEPT, "1"),
        pytest.param("2", KEPT, "1", marks=pytest.mark.slow),
        pytest.param("1", ASKED, "2", marks=pytest.mark.slow),
    ],
)
def test_threads_asked_for_win_over_the_shell_and_its_own_over_the_default(
    paceline, script, ranks, words, threads
):
    name = script("import os; print('T', os.environ.get('OMP_NUM_THREADS'), flush=True)")
    done = paceline("run", "-n", ranks, *words, "--", name, OMP_NUM_THREADS="1")
    assert done.stdout.split() == ["T", threads] * int(ranks)


@pytest.mark.slow
def test_the_exit_code_of_one_rank_is_the_exit_code(paceline, script):
    name = script(
        "import sys, paceline\nworld = paceline.init()\nif world.rank == 1: sys.exit(7)\n"
        "world.barrier()\n"
    )
    assert paceline("run", "-n", "2", "--", name).returncode == 7


@pytest.mark.parametrize("code", [9, pytest.param(0, marks=pytest.mark.slow)])
def test_the_exit_code_of_a_lone_script_is_the_exit_code(paceline, script, code):
    name = script(f"raise SystemExit({code})")
    assert paceline("run", "-n", "1", "--", name).returncode == code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leave", "code"),
    [
        ("sys.exit(0)", 1),
        ("sys.exit(6)", 6),
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_a_rank_that_exits_out_of_a_block_ends_all(paceline, script, leave, code):
    name = script(
        "import sys, torch, paceline\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "world = paceline.init()\n"
        "with paceline.keep_pace(model, optimizer):\n"
        f"    if world.rank == 1: {leave}\n"
        "    model(torch.ones(1, 2)).sum().backward()\n    optimizer.step()\n"
    )
    done = paceline("run", "-n", "2", "--", name)
    assert done.returncode == code
    assert re.search(r"paceline: (exit|interrupted).* on rank 1 \(\S+\); all ranks", done.stderr)


def test_an_interrupt_is_said(tmp_path, script):
    name = script(f"import os, time; os.write(1, b'up\\n'); {FOR_AN_HOUR}\n")
    with started([PACELINE, "run", "-n", "2", "--", name], tmp_path) as job:
        assert [job.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=90)
    assert job.returncode == 130
    assert "paceline: interrupted" in errors


def test_a_script_that_imports_keras_first_gets_a_backend_that_is_installed(paceline, tmp_path):
    pytest.importorskip("keras")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "keras.json").write_text('{"backend": "nowhere"}')
    (tmp_path / "script.py").write_text("import keras\nprint(keras.backend.backend())\n")
    done = paceline("run", "-n", "1", "--", "script.py", KERAS_HOME=str(tmp_path / "home"))
    assert (done.returncode, done.stdout) == (0, "torch\n"), done.stderr

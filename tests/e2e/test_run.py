"""`paceline run`: any script, on any number of ranks."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import clean_environment


@pytest.fixture
def script(tmp_path):
    def write(code):
        (tmp_path / "program.py").write_text(code)
        return "program.py"

    return write


def test_a_script_runs_on_every_rank_with_its_arguments(paceline, script):
    name = script(
        "import sys, paceline\nworld = paceline.init()\n"
        "print(world.rank, world.size, __name__, sys.argv, flush=True)\n"
    )
    done = paceline("run", "-n", "3", "--", name, "--flag", "a b")
    assert done.returncode == 0, done.stderr
    expected = "3 __main__ ['program.py', '--flag', 'a b']"
    assert sorted(done.stdout.splitlines()) == [f"{rank} {expected}" for rank in range(3)]


def test_one_rank_needs_no_mpi(paceline, script):
    name = script("import sys, paceline\nprint(paceline.init().size, 'mpi4py.MPI' in sys.modules)")
    done = paceline("run", "-n", "1", "--", name)
    assert done.stdout.split() == ["1", "False"]


def test_siblings_of_the_script_can_be_imported(paceline, script, tmp_path):
    (tmp_path / "sibling.py").write_text("value = 42\n")
    done = paceline("run", "-n", "1", "--", script("import sibling; print(sibling.value)"))
    assert done.stdout.strip() == "42"


def test_a_module_can_be_run(paceline, tmp_path):
    (tmp_path / "pack.py").write_text("import sys; print('as', __name__, sys.argv[1:])\n")
    done = paceline("run", "-n", "1", "--", "-m", "pack", "x")
    assert done.stdout.strip() == "as __main__ ['x']"


@pytest.mark.parametrize("wait", ["paceline.init().barrier()", "time.sleep(60)"])
def test_an_exception_on_one_rank_ends_all_within_seconds(paceline, script, wait):
    name = script(
        "import time, paceline\nworld = paceline.init()\n"
        "if world.rank == 1:\n    print('now', time.time(), flush=True)\n"
        f"    raise RuntimeError('out of luck')\n{wait}\n"
    )
    done = paceline("run", "-n", "3", "--", name, timeout_s=40)
    ended = time.time()
    assert done.returncode == 1
    assert ended - float(re.search(r"now (\S+)", done.stdout)[1]) < 5
    assert done.stderr.count("RuntimeError: out of luck") == 1
    assert re.search(r"RuntimeError on rank 1 \(\S+\); all ranks were ended", done.stderr)
    assert "prterun" not in done.stderr


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm on this system")
@pytest.mark.parametrize("end", ["raise RuntimeError('out of luck')", "os._exit(3)", "pass"])
def test_no_shared_memory_is_left_behind(paceline, script, end):
    name = script(
        "import os, paceline\nworld = paceline.init()\nworld.barrier()\n"
        "folder = os.environ['PACELINE_JOB_FOLDER']\n"
        "print(f'inside {folder} {len(os.listdir(folder))}\\n', end='', flush=True)\n"
        f"if world.rank == 1: {end}\nworld.barrier()\n"
    )
    done = paceline("run", "-n", "2", "--", name, timeout_s=40)
    inside = re.search(r"inside (/dev/shm/paceline-\S+) [1-9]", done.stdout)
    assert inside, "the job has its segments there"
    assert not Path(inside[1]).exists()


def test_ranks_that_fail_at_one_moment_say_it_once(paceline, script):
    path = script(
        "import time\n"
        "import paceline\n"
        "from paceline.launch import world\n"
        "world.wait_for_turn = lambda rank: time.sleep(0.01 * rank)\n"
        "paceline.init().barrier()\n"
        "raise world.LaunchError('for one reason')\n"
    )
    done = paceline("run", "-n", "2", "--", path, timeout_s=30)
    assert done.returncode == 1
    assert done.stderr.count("for one reason") == 1, done.stderr


def test_an_exception_without_mpi_ends_all(paceline, script):
    name = script(
        "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        "    raise RuntimeError('out of luck')\ntime.sleep(60)\n"
    )
    done = paceline("run", "-n", "2", "--", name, timeout_s=40)
    assert done.returncode == 1
    assert "RuntimeError: out of luck" in done.stderr


def test_a_script_that_starts_mpi_by_itself_is_ended_too(paceline, script):
    name = script(
        "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: raise RuntimeError('out of luck')\n"
        "MPI.COMM_WORLD.Barrier()\n"
    )
    done = paceline("run", "-n", "2", "--", name, timeout_s=40)
    assert done.returncode == 1
    assert re.search(r"RuntimeError on rank 1 \(\S+\)", done.stderr)


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


def test_what_cannot_be_run_is_said(paceline, script):
    done = paceline("run", "-n", "1", "--", "-m")
    assert done.returncode == 1
    assert "-m needs the name of a module" in done.stderr
    done = paceline("run", "-n", "1", "--threads", "0", "--", script(""))
    assert done.returncode == 2
    assert "'0' is not a number of 1 or more" in done.stderr


def test_threads_asked_for_win_over_the_shell_and_its_own_over_the_default(paceline, script):
    name = script("import os; print('T', os.environ.get('OMP_NUM_THREADS'), flush=True)")
    asked = paceline("run", "-n", "2", "--threads", "2", "--", name, OMP_NUM_THREADS="1")
    assert asked.stdout.split() == ["T", "2", "T", "2"]
    for ranks in ("1", "2"):
        kept = paceline("run", "-n", ranks, "--", name, OMP_NUM_THREADS="1")
        assert kept.stdout.split() == ["T", "1"] * int(ranks)


def test_the_exit_code_of_a_script_is_the_exit_code(paceline, script):
    name = script(
        "import sys, paceline\nworld = paceline.init()\nif world.rank == 1: sys.exit(7)\n"
        "world.barrier()\n"
    )
    assert paceline("run", "-n", "2", "--", name, timeout_s=40).returncode == 7
    assert paceline("run", "-n", "1", "--", script("raise SystemExit(9)")).returncode == 9
    assert paceline("run", "-n", "1", "--", script("raise SystemExit(0)")).returncode == 0


@pytest.mark.parametrize(
    ("leave", "code"), [("sys.exit(0)", 1), ("sys.exit(6)", 6), ("raise KeyboardInterrupt", 130)]
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
    done = paceline("run", "-n", "2", "--", name, timeout_s=40)
    assert done.returncode == code
    assert re.search(r"paceline: (exit|interrupted).* on rank 1 \(\S+\); all ranks", done.stderr)


def test_an_interrupt_is_said(tmp_path):
    (tmp_path / "sleep.py").write_text("import time; print('up', flush=True); time.sleep(60)\n")
    command = [str(Path(sys.executable).parent / "paceline"), "run", "-n", "2", "--", "sleep.py"]
    job = subprocess.Popen(
        command, cwd=tmp_path, env=clean_environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert job.stdout.readline() == "up\n"
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=30)
    assert job.returncode == 130
    assert "paceline: interrupted" in errors


def test_a_missing_script_is_named(paceline):
    done = paceline("run", "-n", "2", "--", "nowhere.py")
    assert done.returncode == 1
    assert done.stderr == "LaunchError: the script nowhere.py does not exist\n"


def test_no_ranks_is_an_error(paceline, script):
    done = paceline("run", "-n", "0", "--", script(""))
    assert done.returncode == 2
    assert "'0' is not a number of 1 or more" in done.stderr

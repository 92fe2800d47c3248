"""Memory as /proc, cgroups and /dev/shm tell it; roots of file systems are made up."""

from pathlib import Path

from paceline.cluster.memory import read_memory, read_memory_limit, read_shared_memory


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_memory_is_read_in_bytes(tmp_path):
    write(tmp_path, "proc/meminfo", "MemTotal:  1000 kB\nMemAvailable: 600 kB\nHugePages: 0\n")
    assert read_memory(tmp_path) == (1_024_000, 614_400)
    assert read_memory(tmp_path / "nowhere") == (0, 0)


def test_the_least_limit_on_the_way_up_counts(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/job/step\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", "5000\n")
    write(tmp_path, "sys/fs/cgroup/job/step/memory.max", "max\n")
    assert read_memory_limit(tmp_path) == 5000


def test_the_older_cgroups_say_a_huge_number_for_no_limit(tmp_path):
    write(tmp_path, "proc/self/cgroup", "7:memory:/job\n3:cpu:/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096))
    assert read_memory_limit(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "7000")
    assert read_memory_limit(tmp_path) == 7000


def test_shared_memory_is_measured_where_there_is_some(tmp_path):
    total, free = read_shared_memory(str(tmp_path))
    assert total >= free > 0
    assert read_shared_memory(str(tmp_path / "nowhere")) == (0, 0)

"""The cgroups of this process: CPU quotas and memory limits, from its own group up to the root."""

from collections.abc import Iterator
from pathlib import Path

_NO_LIMIT = 2**60
"""Version 1 states no limit of memory as a number larger than any memory."""


def cpu_quotas(root: Path) -> Iterator[float]:
    """CPUs' worth of time that each group allows, where it limits it."""
    for group, version in _groups(root, "cpu"):
        quota = _quota_v2(group) if version == 2 else _quota_v1(group)
        if quota is not None:
            yield quota


def memory_limits(root: Path) -> Iterator[int]:
    """Bytes of memory that each group allows, where it limits it."""
    for group, version in _groups(root, "memory"):
        text = _read(group / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if text.isdigit() and int(text) < _NO_LIMIT:
            yield int(text)


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """The folders of this process's groups with a controller, and the version of each."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            tops, version = (mount, mount / "unified"), 2
        elif controller in controllers.split(","):
            tops, version = (mount / controllers, mount / controller), 1
        else:
            continue
        for top in tops:
            yield from ((group, version) for group in _upwards(top, path))


def _upwards(top: Path, path: str) -> Iterator[Path]:
    # In a container the path may be the host's and absent here; the top still counts.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:depth])


def _quota_v2(group: Path) -> float | None:
    quota, _, period = (_read(group / "cpu.max") or "max").partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(group: Path) -> float | None:
    quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

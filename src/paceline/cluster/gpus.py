"""Which GPUs this node has, and which of them this rank gets.

Nothing here loads a framework: a rank must have its GPU before a framework looks for GPUs.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from paceline.cluster.detect import Environment

SWITCH = "PACELINE_ASSIGN_GPUS"
"""The variable that, set to 0, lets every rank see all GPUs."""

_CUDA, _HIP, _ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")
_ROOT = Path("/")
_TIMEOUT_S = 5.0


def find_gpus(env: Mapping[str, str] = os.environ, root: Path = _ROOT) -> tuple[str, ...]:
    """The GPUs that this process may use, by index or by name.

    The environment decides; where it says nothing, NVIDIA's driver. GPUs of other makers are known
    by the environment only.

    >>> find_gpus({"CUDA_VISIBLE_DEVICES": "2,MIG-7f3a"})
    ('2', 'MIG-7f3a')
    """
    variable = _variables(env)[0]
    return _read_list(env[variable]) if variable in env else _look(env, root)


def share_of_gpus(visible: Sequence[str], local_rank: int, local_size: int) -> tuple[str, ...]:
    """The GPUs of one rank among those of its node: one each, round robin.

    One each also if there are more: a replica trains on one device, so the others would stay idle
    anyway, and each would cost the memory of a context. A rank that has its node to itself keeps
    all: there is nobody to share with, and its program may use several.

    >>> [share_of_gpus(["0", "1"], rank, 3) for rank in range(3)]
    [('0',), ('1',), ('0',)]
    """
    if local_size == 1 or len(visible) < 2:
        return tuple(visible)
    return (visible[local_rank % len(visible)],)


def assign_gpus(
    environment: Environment, env: MutableMapping[str, str] = os.environ, root: Path = _ROOT
) -> None:
    """Make only its own GPU visible to this rank; call it before a framework looks for GPUs.

    If one is visible nothing changes: the launcher or the scheduler has assigned them, or this
    was called before. Nothing changes either for a process that is no rank or does not know its
    local rank, nor with PACELINE_ASSIGN_GPUS=0.
    """
    if not environment.launched or environment.local_rank is None or env.get(SWITCH) == "0":
        return
    visible = find_gpus(env, root)
    # If the number of ranks on the node is unknown, it may be that of all ranks.
    neighbours = environment.local_size or environment.size
    mine = share_of_gpus(visible, environment.local_rank, neighbours)
    if mine != visible:
        env.update(dict.fromkeys(_variables(env), ",".join(mine)))


def _variables(env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that select the visible GPUs, and that we change.

    AMD's runtime reads HIP's and CUDA's, and counts within those that ROCR's leaves: if one of them
    is set, ROCR's must stay as it is.
    """
    upper = tuple(name for name in (_HIP, _CUDA) if name in env)
    return upper or ((_ROCR,) if _ROCR in env else (_CUDA,))


def _read_list(text: str) -> tuple[str, ...]:
    """The devices of a list, up to the first invalid one, as in CUDA: -1 hides all others."""
    names: list[str] = []
    for part in text.split(","):
        if not _NAME.fullmatch(part.strip()):
            break
        names.append(part.strip())
    return tuple(names)


def _look(env: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Indices of the GPUs that NVIDIA's driver shows. Without a driver this lists two folders.

    A container may see all GPUs of its host in /proc, and have the device files of a few.
    """
    known = len(list((root / "proc/driver/nvidia/gpus").glob("*")))
    files = len(list((root / "dev").glob("nvidia[0-9]*")))
    if known:
        return _indices(min(known, files or known))
    if not files:
        return ()
    # The driver is old or hides its list: its own tool knows which of the files are usable.
    listed = _count_listed(env)
    return _indices(files if listed is None else listed)


def _indices(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _count_listed(env: Mapping[str, str]) -> int | None:
    """The GPUs that `nvidia-smi -L` lists; None if it is absent or does not answer."""
    tool = shutil.which("nvidia-smi", path=env.get("PATH"))
    if tool is None:
        return None
    try:
        answer = subprocess.run(
            [tool, "-L"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # MIG instances of a GPU have lines of their own, indented below it.
    found = re.findall(r"^GPU \d+:", answer.stdout, flags=re.MULTILINE)
    return len(found) if answer.returncode == 0 else None

"""The memory of a process: its mappings, and its share of what is resident."""

from __future__ import annotations

import ctypes
import gc
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ConfigError

KB = 1024
_ROLLUP = Path("/proc/self/smaps_rollup")
_WRITTEN = ("Pss_Anon:", "Pss_Shmem:")


@dataclass(frozen=True)
class Mapping:
    """A mapping of a process, as in a line of /proc/self/maps."""

    start: int
    end: int
    shared: bool
    """Whether other processes see what one writes."""
    offset: int
    file: str
    """Device and inode, the same in every process that maps the file."""


def read_mappings() -> list[Mapping]:
    """All mappings of this process, in the order of their addresses."""
    return parse_mappings(Path("/proc/self/maps").read_text())


def parse_mappings(text: str) -> list[Mapping]:
    """Read the lines of /proc/PID/maps.

    >>> parse_mappings("7f00-7f80 rw-s 00001000 00:19 42 /dev/shm/node-memory (deleted)")
    [Mapping(start=32512, end=32640, shared=True, offset=4096, file='00:19 42')]
    """
    return [_parse_line(line) for line in text.splitlines()]


def _parse_line(line: str) -> Mapping:
    span, rights, offset, device, inode = line.split(maxsplit=5)[:5]
    start, _, end = span.partition("-")
    return Mapping(
        int(start, 16), int(end, 16), rights[3] == "s", int(offset, 16), f"{device} {inode}"
    )


def identify(address: int, mappings: list[Mapping], owner: str) -> str:
    """A name for the memory at the address: the same in all processes that share it, else its own.

    >>> shared = parse_mappings("7f00-7f80 rw-s 00001000 00:19 42 /dev/shm/node-memory (deleted)")
    >>> identify(0x7f10, shared, "rank 1")
    '00:19 42 at 4112'
    >>> identify(0x10, shared, "rank 1")
    'rank 1 at 16'
    """
    at = bisect_right([mapping.start for mapping in mappings], address) - 1
    if at >= 0 and address < mappings[at].end and mappings[at].shared:
        mapping = mappings[at]
        return f"{mapping.file} at {mapping.offset + address - mapping.start}"
    return f"{owner} at {address}"


def check_kernel(rollup: Path = _ROLLUP) -> None:
    """Refuse a system without what `resident_bytes` reads."""
    if not rollup.exists() or "Pss_Anon:" not in rollup.read_text():
        raise ConfigError(
            f"memory is read from Pss_Anon in {rollup}, which this system does not have; measure "
            "it on Linux 5.4 or newer"
        )


def resident_bytes() -> int:
    """This process's part of the node's resident memory: what is shared, divided by its sharers.

    Code is left out: how many share it depends on what else runs on the machine. What was freed is
    given back first: the allocator's reserve says nothing about what is needed.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc alone has it
        libc.malloc_trim(0)
    return parse_rollup(_ROLLUP.read_text())


def parse_rollup(text: str) -> int:
    """Bytes of /proc/PID/smaps_rollup that lie in memory of the process and in shared memory.

    >>> parse_rollup("Pss: 15 kB\\nPss_Anon: 4 kB\\nPss_File: 8 kB\\nPss_Shmem: 3 kB\\n")
    7168
    """
    lines = (line.split() for line in text.splitlines())
    return sum(int(words[1]) * KB for words in lines if words[0] in _WRITTEN)

"""Filter Open MPI's banners out of stderr, so that the user reads one message: the rank's own."""

import re

_RULE = re.compile(rb"-{60,}\s*")
_MARKS = (b"prterun", b"MPI_ABORT was invoked", b"Primary job terminated", b"mpirun detected")
# These explain a death that no rank can explain itself (out of memory, a bad executable).
_KEEP = (b"exited on signal", b"unable to", b"not enough slots")
# PMIx says this when a rank is gone before it was told to go; the rank's own words come besides.
_NOISE = re.compile(rb"\[[^\]]+:\d+\] PMIX ERROR: .*\bpmix_server\.c at line \d+\s*")
_MAX_BLOCK_LINES = 40


class BannerFilter:
    """Take stderr in pieces and give back what the user should see of it.

    A banner is a block between two lines of dashes that holds one of the known phrases. Every line
    of dashes may open a block, also the one that ended another: programs draw such lines too, and
    a filter that paired them strictly would lose count.
    """

    def __init__(self) -> None:
        self._partial = b""
        self._block: list[bytes] = []
        self._dropped: list[bytes] = []
        self._shown = False

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of the stream; return what can be shown at once."""
        # PRRTE ends each banner with the NUL of its C string.
        *lines, self._partial = (self._partial + data.replace(b"\0", b"")).split(b"\n")
        return self._show(b"".join(self._take(line + b"\n") for line in lines))

    def pause(self) -> bytes:
        """Return what was held back and is no banner: the stream has paused."""
        if self._block and _is_banner([*self._block, self._partial]):
            return b""
        return self._show(self._release())

    def close(self, failed: bool) -> bytes:
        """Return the rest; with the dropped banners if the job failed and said nothing else."""
        if self._block and _is_banner([*self._block, self._partial]):
            self._dropped += [*self._block, self._partial]
            self._block, self._partial = [], b""
        rest = self._show(self._release())
        return rest if self._shown or not failed else b"".join(self._dropped)

    def _take(self, line: bytes) -> bytes:
        if _NOISE.fullmatch(line):
            self._dropped.append(line)
            return b""
        if not self._block:
            if not _RULE.fullmatch(line):
                return line
            self._block = [line]
            return b""
        if not _RULE.fullmatch(line):
            self._block.append(line)
            full = len(self._block) > _MAX_BLOCK_LINES
            return self._release_block() if full else b""
        if _is_banner(self._block):
            self._dropped += [*self._block, line]
            self._block = []
            return b""
        text = self._release_block()
        self._block = [line]
        return text

    def _release(self) -> bytes:
        text, self._partial = self._release_block() + self._partial, b""
        return text

    def _release_block(self) -> bytes:
        text, self._block = b"".join(self._block), []
        return text

    def _show(self, text: bytes) -> bytes:
        self._shown = self._shown or bool(text.strip())
        return text


def _is_banner(block: list[bytes]) -> bool:
    # Open MPI wraps its sentences, so phrases are sought in the block as one line.
    text = b" ".join(b"".join(block).split())
    return any(mark in text for mark in _MARKS) and not any(keep in text for keep in _KEEP)

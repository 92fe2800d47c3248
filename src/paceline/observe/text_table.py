"""Tables as plain text."""

from collections.abc import Collection, Sequence

_GAP = "  "


def render_text_table(lines: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """Lines of cells with their columns aligned: those numbered in `left` to the left.

    >>> render_text_table([["case", "us"], ["4 KB", "12.5"]], left={0})
    'case    us\\n4 KB  12.5\\n'
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(_render_line(line, widths, left) for line in lines)


def _render_line(cells: Sequence[str], widths: Sequence[int], left: Collection[int]) -> str:
    aligned = [
        cell.ljust(width) if column in left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return _GAP.join(aligned).rstrip() + "\n"

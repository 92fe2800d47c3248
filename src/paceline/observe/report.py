"""The table at the end of a run: the results of each epoch, and where the time went."""

from typing import TYPE_CHECKING, TextIO

from paceline.observe.history import EpochRecord, History
from paceline.observe.numbers import format_count, format_loss, format_percent

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = (
    "epoch",
    "train loss",
    "val loss",
    "val accuracy",
    "samples/s",
    "compute",
    "wait",
    "communication",
    "data",
)
# Wide enough for every column: a file has no edge at which the table would have to wrap.
PLAIN_WIDTH = 120
ROOMY_WIDTH = 104


def final_table(
    history: History,
    ranks: int | None = None,
    *,
    ascii_only: bool = False,
    roomy: bool = False,
) -> "Table":
    """Return the rich table of all epochs; the last four columns are shares of the time.

    `ranks` is named below the table, as the shares are means over them. The table fits into 80
    columns with headings in two lines, into ROOMY_WIDTH with all in one when `roomy`.
    """
    from rich import box
    from rich.table import Table

    caption = (
        f"shares of time: mean over {ranks} rank{'s' if ranks != 1 else ''}" if ranks else None
    )
    table = Table(
        box=box.ASCII_DOUBLE_HEAD if ascii_only else box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1) if roomy else 0,
        pad_edge=False,
        caption=caption if history else "no epoch was finished",
        caption_justify="left",
    )
    for heading in HEADINGS:
        text = heading if roomy else heading.replace(" ", "\n")
        table.add_column(text, justify="right", overflow="fold")
    for record in history:
        table.add_row(*_cells(record))
    return table


def render_final(
    history: History,
    stream: TextIO,
    terminal: bool,
    width: int | None = None,
    ranks: int | None = None,
    *remarks: str | None,
) -> None:
    """Write the final table: in colour to a terminal, else in plain ASCII; remarks come below."""
    from rich.console import Console

    if width is None and not terminal:
        width = PLAIN_WIDTH
    console = Console(
        file=stream,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
    )
    roomy = console.width >= ROOMY_WIDTH
    console.print(final_table(history, ranks, ascii_only=not terminal, roomy=roomy))
    for remark in filter(None, remarks):
        console.print(remark)


def _cells(record: EpochRecord) -> list[str]:
    measured = record.time.total > 0
    shares = record.time.shares().values()
    return [
        str(record.epoch),
        format_loss(record.train_loss),
        format_loss(record.val_loss),
        format_percent(record.val_accuracy),
        format_count(record.samples_per_s),
        *(format_percent(share if measured else None, decimals=1) for share in shares),
    ]

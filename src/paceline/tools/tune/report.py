"""The results of the trials: as a table, as JSON, as a plot."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path

from paceline.observe.text_table import render_text_table
from paceline.observe.waiting import WORTH_SAYING, advise
from paceline.tools.tune.command import TrialCommand
from paceline.tools.tune.search import best_of
from paceline.tools.tune.trial import Outcome

_HEAD = (
    *("ranks", "threads", "batch", "{unit}/s", "speed-up"),
    *("waiting", "uneven", "memory/rank", "in all"),
)
_LONGEST_NOTE = 90
_ADVICE_WIDTH = 100
_NONE = "-"
_NOTES = {
    "samples": "batch: samples in a step of all ranks. It grows with their number, so a run takes "
    "fewer and larger steps;\n       learning rates are not scaled by themselves.",
    "steps": "steps: of all ranks together; the loop takes no batches from paceline.shard, so its "
    "samples are not known.",
    "weights": "weights: what the loop gave to pace.weigh, over all ranks.",
    "runs": "runs: the whole script was timed, start-up included, since it reports no steps; train "
    "by keep_pace or Trainer\n      for a shorter and better measurement.",
}
_UNEVEN = (
    "uneven: the part of the waiting that is now for one rank, now for another; the rest is for a "
    "rank that is slower."
)


def render_table(outcomes: Sequence[Outcome]) -> str:
    """A line for each setting, fewest ranks first; the speed-up is against the first line."""
    rows = sorted(outcomes, key=lambda outcome: outcome.setting)
    measured = [o.estimate for o in rows if o.estimate is not None]
    unit = measured[0].unit if measured else "samples"
    first = measured[0].rate if measured else None
    best = best_of(outcomes)
    lines = [[*(title.format(unit=unit) for title in _HEAD), ""]]
    lines += [[*_cells(row, first), _note(row, row is best)] for row in rows]
    return render_text_table(lines, left=(len(_HEAD),))  # the note


def render_notes(outcomes: Sequence[Outcome]) -> str:
    """Notes for reading the table."""
    found = [o.estimate for o in outcomes if o.estimate is not None]
    notes = [_NOTES[unit] for unit in dict.fromkeys(e.unit for e in found)]
    missing = max((e.missing for e in found), default=0)
    if missing:
        notes.append(
            f"{missing} ranks on other nodes could not write to this one's temporary folder and "
            "are assumed to be like the others; set TMPDIR to a shared folder to count them."
        )
    if any(e.waits is not None and e.waits.share >= WORTH_SAYING for e in found):
        notes.append(_UNEVEN)
    return "".join(f"{note}\n" for note in notes)


def advise_on_best(outcomes: Sequence[Outcome], cores: int) -> str | None:
    """What would make the best setting faster; None if its ranks hardly wait."""
    best = best_of(outcomes)
    found = best.estimate if best is not None else None
    if best is None or found is None or found.facts is None:
        return None
    facts = dataclasses.replace(found.facts, crowded=best.setting.ranks > cores)
    return advise(found.waits, facts, tuned=True)


def render_advice(outcomes: Sequence[Outcome], cores: int) -> str:
    """The same as a paragraph; empty if there is none."""
    lines = textwrap.wrap(
        advise_on_best(outcomes, cores) or "", _ADVICE_WIDTH, break_on_hyphens=False
    )
    return "".join(f"{line}\n" for line in ["", *lines]) if lines else ""


def plain(outcomes: Sequence[Outcome], command: TrialCommand, cores: int) -> dict[str, object]:
    """The same as plain values, for JSON."""
    best = best_of(outcomes)
    return {
        "cores": cores,
        "trials": [dataclasses.asdict(outcome) for outcome in outcomes],
        "best": dataclasses.asdict(best.setting) if best is not None else None,
        "command": command.shown(best.setting) if best is not None else None,
        "advice": advise_on_best(outcomes, cores),
    }


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the speed over the ranks, a line for each number of threads; the best is marked."""
    from matplotlib.figure import Figure

    known = [(o, o.estimate) for o in sorted(outcomes, key=lambda o: o.setting) if o.estimate]
    figure = Figure(figsize=(7, 4.5))
    axes = figure.add_subplot()
    for threads in sorted({outcome.setting.threads for outcome, _ in known}):
        line = [(o.setting.ranks, e.rate) for o, e in known if o.setting.threads == threads]
        label = f"{threads} thread{'s' * (threads > 1)} per rank"
        axes.plot(*zip(*line, strict=True), marker="o", label=label)
    best = best_of(outcomes)
    if best is not None and best.estimate is not None:
        place = (best.setting.ranks, best.estimate.rate)
        axes.plot(*place, "*", color="black", markersize=14, label=f"best: {best.setting}")
    if known:
        axes.set_xticks(sorted({outcome.setting.ranks for outcome, _ in known}))
        axes.set_ylabel(f"{known[0][1].unit}/s")
        axes.legend()
    axes.set_xlabel("ranks")
    axes.set_ylim(bottom=0)
    axes.set_title("paceline tune")
    figure.tight_layout()
    figure.savefig(path)


def _cells(outcome: Outcome, first: float | None) -> list[str]:
    setting, found = outcome.setting, outcome.estimate
    names = [str(setting.ranks), str(setting.threads)]
    if found is None:
        return [*names, *[_NONE] * (len(_HEAD) - len(names))]
    return [
        *names,
        _NONE if found.batch is None else f"{found.batch:,.4g}",
        f"{found.rate:,.0f}" if found.rate >= 100 else f"{found.rate:.3g}",
        _NONE if not first else f"{found.rate / first:.2f}",
        _format_share(found.waiting),
        _format_share(None if found.waits is None else found.waits.uneven),
        format_bytes(found.rank_bytes),
        format_bytes(found.total_bytes),
    ]


def _format_share(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.0f} %"


def format_bytes(count: int | None) -> str:
    """In decimal units: 312 MB, 4.1 GB."""
    if count is None:
        return _NONE
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def _note(outcome: Outcome, is_best: bool) -> str:
    if is_best:
        return "<- best"
    if outcome.status in ("measured", "early", "interrupted"):
        return outcome.reason
    note = f"{outcome.status}: {outcome.reason}"
    return note if len(note) <= _LONGEST_NOTE else f"{note[: _LONGEST_NOTE - 3]}..."

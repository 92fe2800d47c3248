"""The page: the verdict first, then what was learned, how it went, and on what it ran."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from paceline.core.files import write_atomically
from paceline.observe.numbers import format_count, format_duration, format_loss, format_percent
from paceline.observe.page.figures import RunFigures
from paceline.observe.page.labels import label_runs
from paceline.observe.page.learning import AXES, plot_epochs
from paceline.observe.page.plots import Plot
from paceline.observe.page.style import ALONE, COLOURS, PAGE, PARTS
from paceline.observe.page.working import plot_working, worker_rows

_MOST_ROWS = 512


def write_report(runs: Sequence[RunFigures], path: Path) -> None:
    """Write the page of these runs to a file."""
    write_atomically(path, render_page(runs))


def render_page(runs: Sequence[RunFigures]) -> str:
    """The whole document."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    for run, label in zip(runs, label_runs([run.name for run in runs]), strict=True):
        run.label = label
    body = [
        f"<header><h1>{escape(title)}</h1>{_head(runs[0]) if len(runs) == 1 else ''}</header>",
        _compare(runs) if len(runs) > 1 else "",
        _learning(runs),
        _working(runs),
        *(_settings(run, alone=len(runs) == 1) for run in runs),
        "<footer>Made by Paceline from the run's directory. Colours follow your system; "
        "each plot can be saved as SVG, and each has its figures as a table.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)} · Paceline</title>'
        f"<style>{PAGE}{_choices()}</style></head>\n<body><main>{''.join(body)}</main></body></html>\n"
    )


def _head(run: RunFigures) -> str:
    """The verdict, remarks, and the figures that people ask for first."""
    summary = run.summary
    found = (summary.get("verdict") or {}).get("sentence")
    if not summary:
        sentence = "This run has no summary: it is under way, or did not end well."
    elif found:
        sentence = f"{found[:1].upper()}{found[1:]}."
    else:
        sentence = "One rank trained alone: it waited for nobody."
    remarks = [summary.get("advice"), summary.get("warning")]
    if summary.get("stopped"):
        remarks.append(f"Stopped early: {summary['stopped']}.")
    if run.part < 1.0:
        remarks.append(
            f"Curves over steps are made of {format_percent(run.part, 0)} of the events; "
            "paceline report reads all of them."
        )
    text = "".join(f'<p class="remark">{escape(str(one))}</p>' for one in remarks if one)
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in _facts(run)
    )
    return f'<p class="verdict">{escape(sentence)}</p>{text}<dl class="facts">{facts}</dl>'


def _facts(run: RunFigures) -> list[tuple[str, str]]:
    summary, history = run.summary, run.history
    last = history[-1] if history else None
    validated = next((r for r in reversed(history) if r.val_loss is not None), None)
    seconds = summary.get("seconds") or sum(record.seconds for record in history)
    nodes = len({worker.node for worker in run.workers.values()}) or 1
    ranks = summary.get("ranks") or len(run.workers)
    rate = summary.get("samples_per_s") or (last.samples_per_s if last else None)
    facts = [
        ("validation accuracy", format_percent(validated.val_accuracy) if validated else "-"),
        ("validation loss", format_loss(validated.val_loss) if validated else "-"),
        ("training loss", format_loss(last.train_loss) if last else "-"),
        ("epochs", format_count(len(history))),
        ("samples/s", format_count(rate)),
        ("time", format_duration(seconds)),
        ("ranks", f"{ranks} on {nodes} node{'s' * (nodes > 1)}"),
        ("rule", str(summary.get("rule") or "-")),
    ]
    return [(name, value) for name, value in facts if value != "-"]


def _compare(runs: Sequence[RunFigures]) -> str:
    names: list[str] = []
    for run in runs:
        names += [name for name, _ in _facts(run) if name not in names]
    rows = []
    for number, run in enumerate(runs):
        facts = dict(_facts(run))
        verdict = (run.summary.get("verdict") or {}).get("sentence", "-")
        style = f"background:var(--c{number % len(COLOURS)})"
        cells = "".join(f"<td>{escape(facts.get(name, '-'))}</td>" for name in names)
        rows.append(
            f'<tr><td><span class="key"><span><i style="{style}"></i>{escape(run.name)}</span>'
            f"</span></td>{cells}</tr>"
        )
        rows.append(f'<tr class="says"><td colspan="{len(names) + 1}">{escape(verdict)}</td></tr>')
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ["run", *names])
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Runs"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _learning(runs: Sequence[RunFigures]) -> str:
    groups = {axis: plot_epochs(runs, axis) for axis in AXES}
    if not any(groups.values()):
        return "<section><h2>Learning</h2><p>No epoch has ended.</p></section>"
    inputs = "".join(
        f'<input class="hidden" type="radio" name="over" id="over-{axis}" aria-label="over {axis}"'
        f"{' checked' * (not number)}>"
        for number, axis in enumerate(AXES)
    )
    labels = "".join(f'<label for="over-{axis}">{axis}</label>' for axis in AXES)
    plots = "".join(
        f'<div class="by by-{axis}"><div class="plots">{_figures(found, axis)}</div></div>'
        for axis, found in groups.items()
    )
    return (
        f'<section><h2>Learning</h2>{inputs}<div class="choice"><span>over</span>{labels}</div>'
        f"{plots}</section>"
    )


def _choices() -> str:
    """Which axis is shown, and which is marked: by radio buttons, without a script."""
    return "".join(
        f"#over-{a}:checked~.by-{a}{{display:block}}"
        f"#over-{a}:checked~.choice label[for=over-{a}]{{background:var(--wash);color:var(--ink)}}"
        f"#over-{a}:focus-visible~.choice label[for=over-{a}]{{outline:2px solid var(--accent)}}"
        for a in AXES
    )


def _working(runs: Sequence[RunFigures]) -> str:
    plots = plot_working(runs)
    if not plots:
        return ""
    return f'<section><h2>Speed</h2><div class="plots">{_figures(plots, "run")}</div></section>'


def _figures(plots: Sequence[Plot], group: str) -> str:
    return "".join(_figure(plot, group) for plot in plots)


def _figure(plot: Plot, group: str) -> str:
    name = f"{plot.title.lower().replace(' ', '-')}-{group}.svg"
    alone = plot.svg.replace("<title>", f"<style>{ALONE}</style><title>", 1)
    link = f"data:image/svg+xml,{quote(alone, safe=_SAFE)}"
    key = ""
    if plot.of_parts:
        marks = (
            f'<li><i style="background:var(--c{n})"></i>{part}</li>' for part, n in PARTS.items()
        )
        key = f'<ul class="key">{"".join(marks)}</ul>'
    table = _table(plot.head, plot.rows, plot.title)
    return (
        f"<figure><figcaption><h3>{escape(plot.title)}</h3>"
        f'<span class="unit">{escape(plot.unit)}</span>'
        f'<a href="{escape(link)}" download="{escape(name)}" '
        f'aria-label="Save {escape(plot.title)} as SVG">SVG</a></figcaption>{key}{plot.svg}'
        f"<details><summary>Table</summary>{table}</details></figure>"
    )


_SAFE = " ,;:/=()-+*!@$[]{}|?"
"""What needs no escape in a link; the attribute's own quotes and < > # % do."""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    titles = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}, table"><table>'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _settings(run: RunFigures, alone: bool) -> str:
    """By which command, on what, and with which settings."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{value}</td></tr>'
        for name, value in _origin(run)
    )
    workers = [worker for _, worker in sorted(run.workers.items())][:_MOST_ROWS]
    table = _table(
        ["worker", "node", "steps", "samples", "ms/step", "bytes sent"],
        worker_rows(workers),
        "Workers",
    )
    title = "Settings" if alone else f"Settings of {run.name}"
    config = f"<summary>config.yaml</summary><pre tabindex=0>{escape(run.config)}</pre>"
    return (
        f'<section><h2>{escape(title)}</h2><div class="scroll"><table class="plain">{rows}</table>'
        f"</div><details><summary>Workers</summary>{table}</details><details>{config}</details></section>"
    )


def _origin(run: RunFigures) -> list[tuple[str, str]]:
    """Names and values as HTML."""
    start: dict[str, Any] = run.start
    machine = start.get("machine") or {}
    versions = start.get("versions") or {}
    parts = [machine.get("processor"), machine.get("system")]
    if machine.get("cores"):
        parts.insert(1, f"{machine['cores']} cores")
    if machine.get("memory_bytes"):
        parts.insert(2, f"{machine['memory_bytes'] / 2**30:.0f} GiB")
    nodes = sorted({worker.node for worker in run.workers.values()})
    named = ", ".join(nodes[:12]) + (f" and {len(nodes) - 12} more" if len(nodes) > 12 else "")
    lines = [
        ("command", f"<code>{escape(start['command'])}</code>" if start.get("command") else ""),
        ("machine of rank 0", escape(", ".join(str(part) for part in parts if part))),
        ("nodes", escape(named)),
        ("versions", escape(", ".join(f"{name} {value}" for name, value in versions.items()))),
        ("ranks changed", escape(_changes(run))),
        ("directory", f"<code>{escape(str(run.path))}</code>"),
    ]
    return [(name, value) for name, value in lines if value]


def _changes(run: RunFigures) -> str:
    """Of an elastic run: when ranks were lost or joined."""
    changes = [event for event in run.generations if event.get("lost") or event.get("joined")]
    return "; ".join(
        f"step {event['step']}: {len(event['lost'])} lost, {event['joined']} joined, "
        f"{event['ranks']} ranks"
        for event in changes
    )

"""How the page looks: light and dark, on a phone, on paper."""

COLOURS = ("#0066a8", "#c8501e", "#00835a", "#a04a86", "#8a6800", "#2f8bbf", "#5a5a5a", "#7a3fb0")
"""Of series: kept apart by people who see colours differently, and by their dashes."""
DARK_COLOURS = (
    *("#5cb3f0", "#f4935f", "#3fc79a", "#e59acb", "#d9b63c", "#9ad4f5", "#b8b8b8", "#c09bee"),
)
PARTS = {"compute": 0, "wait": 4, "communication": 3, "data": 2}
"""The colour of each part of a worker's time."""


def _variables(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


_LIGHT = (
    "--ink:#1d2329;--soft:#5b6570;--line:#dfe3e8;--grid:#e9ecf0;--paper:#ffffff;--wash:#f5f7f9;"
    "--accent:#0066a8;" + _variables(COLOURS)
)
_DARK = (
    "--ink:#e6e9ec;--soft:#a3adb8;--line:#343b43;--grid:#2a3037;--paper:#15191d;--wash:#1d2227;"
    "--accent:#5cb3f0;" + _variables(DARK_COLOURS)
)

PLOT = """
text{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
fill:var(--soft);font-variant-numeric:tabular-nums}
.grid{stroke:var(--grid);stroke-width:1}
.axis{stroke:var(--line);stroke-width:1}
.curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.thin{stroke-width:1.3}
.name{font-weight:600}
.label{fill:var(--ink)}
.inbar{fill:var(--paper);font-weight:600;font-size:11px}
""" + "".join(
    f".s{n}{{stroke:var(--c{n})}}.f{n}{{fill:var(--c{n})}}text.t{n}{{fill:var(--c{n})}}"
    for n in range(len(COLOURS))
)
"""Of the drawings, in the page and where one is lifted out."""

ALONE = f"svg{{{_LIGHT}background:#fff}}{PLOT}"
"""Of a drawing that is lifted out."""

PAGE = (
    f":root{{{_LIGHT}color-scheme:light dark}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    + PLOT
    + """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:48px 32px 64px}
h1{font-size:15px;font-weight:600;letter-spacing:.01em;color:var(--soft);margin:0 0 20px;
overflow-wrap:anywhere}
h2{font-size:20px;font-weight:650;letter-spacing:-.01em;margin:64px 0 20px}
h3{font-size:15px;font-weight:600;margin:0}
.verdict{font-size:27px;line-height:1.32;font-weight:600;letter-spacing:-.015em;margin:0;
max-width:32em;text-wrap:balance}
.remark{color:var(--soft);margin:14px 0 0;max-width:46em}
.facts{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));gap:24px 28px;
margin:40px 0 0;padding:24px 0 0;border-top:1px solid var(--line)}
.facts div{min-width:0}
.facts dt{font-size:13px;color:var(--soft)}
.facts dd{margin:2px 0 0;font-size:22px;font-weight:600;letter-spacing:-.01em;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:44px 48px}
figure{margin:0;min-width:0}
figcaption{display:flex;align-items:baseline;gap:12px;margin:0 0 10px}
figcaption .unit{color:var(--soft);font-size:13px;flex:1}
figcaption a{font-size:13px;color:var(--soft);text-decoration-color:var(--line);
text-underline-offset:3px}
figcaption a:hover,figcaption a:focus{color:var(--accent);text-decoration-color:currentColor}
tr.says td{white-space:normal;color:var(--soft);padding:0 0 12px 18px}
svg{display:block;width:100%;height:auto;overflow:visible}
.key{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0 0 12px;padding:0;list-style:none;
font-size:13px;color:var(--soft)}
.key i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px}
details{margin:10px 0 0;font-size:14px}
summary{cursor:pointer;color:var(--soft);font-size:13px;width:max-content;max-width:100%}
summary:hover{color:var(--ink)}
.scroll{overflow-x:auto;margin:10px 0 0}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;min-width:50%}
th,td{text-align:right;padding:5px 0 5px 22px;border-bottom:1px solid var(--grid);
white-space:nowrap;vertical-align:top}
th{font-weight:600;color:var(--soft);border-color:var(--line)}
th:first-child,td:first-child{text-align:left;padding-left:0}
table.plain th,table.plain td{text-align:left;white-space:normal;overflow-wrap:anywhere}
table.plain th{padding-right:12px;font-weight:400;border-color:var(--grid);white-space:nowrap}
pre{margin:10px 0 0;padding:16px 18px;background:var(--wash);border-radius:6px;overflow-x:auto;
font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.over{border:0;margin:0 0 24px;padding:0;display:contents}
.choice{margin:0 0 22px;font-size:14px;color:var(--soft);display:flex;gap:4px 6px;flex-wrap:wrap;
align-items:center}
.choice label{padding:4px 12px;border-radius:999px;cursor:pointer}
.hidden{position:absolute;opacity:0;pointer-events:none}
.by{display:none}
footer{margin:72px 0 0;padding:20px 0 0;border-top:1px solid var(--line);color:var(--soft);
font-size:13px}
:focus-visible{outline:2px solid var(--accent);outline-offset:3px;border-radius:3px}
@media(max-width:720px){main{padding:28px 16px 48px}.plots{grid-template-columns:minmax(0,1fr);
gap:36px}.verdict{font-size:21px}.facts{gap:18px 20px;grid-template-columns:repeat(2,1fr)}
.facts dd{font-size:19px}h2{margin:48px 0 16px}table{min-width:100%}}
@media print{@PRINT@
main{max-width:none;padding:0}.choice,figcaption a,summary{display:none}
figure{break-inside:avoid}h2{break-after:avoid;margin-top:32px}}
""".replace("@PRINT@", f":root{{{_LIGHT}}}")
)

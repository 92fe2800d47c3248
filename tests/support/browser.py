"""Headless Chromium: what a page looks like, and what it complains about."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

AXE = Path(__file__).parents[2] / "build" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--hide-scrollbars", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-dev-shm-usage", "--allow-file-access-from-files"),
    "--enable-logging=stderr",
)
_TIME_S = 60


def why_no_browser() -> str | None:
    """The reason to skip a test that needs one."""
    return None if shutil.which("chromium") else "no chromium; run scripts/install-browser"


def why_no_axe() -> str | None:
    return None if AXE.exists() else "no axe-core; run scripts/install-browser"


def look_at(page: Path, width: int, height: int, picture: Path, dark: bool = False) -> list[str]:
    """Take a picture of a page that is so wide, as on a phone, too; what the console said.

    No window is narrower than 500: the page lies in a frame.
    """
    frame = picture.with_suffix(".html")
    frame.write_text(
        f'<title>x</title><link rel=icon href="data:,"><body style="margin:0;background:#fff">'
        f'<iframe src="{page.as_uri()}" style="border:0;width:{width}px;height:{height}px">'
    )
    more = [f"--screenshot={picture}", f"--window-size={max(width, 500)},{height}"]
    more += ["--blink-settings=preferredColorScheme=0"] if dark else []
    return _complaints(_run(frame, *more))


def ask(page: Path, script: str, *files: Path, width: int = 1400, wait_ms: int = 0) -> Any:
    """What a function of JavaScript returns in the page, in which these files were run first."""
    copy = page.with_name(f"asked-{page.name}")
    scripts = "".join(f"<script>{file.read_text()}</script>" for file in files)
    answer = (
        "<script>window.onload=async()=>{let a;try{a=await (" + script + ")()}catch(e)"
        "{a={error:String(e)}}const p=document.createElement('pre');p.id='answer';"
        "p.textContent=JSON.stringify(a);document.body.replaceChildren(p)}</script>"
    )
    copy.write_text(page.read_text().replace("</body>", f"{scripts}{answer}</body>"))
    more = ["--dump-dom", f"--window-size={width},1000"]
    more += [f"--virtual-time-budget={wait_ms}"] if wait_ms else []
    found = re.search('<pre id="answer">(.*?)</pre>', _run(copy, *more).stdout, re.DOTALL)
    assert found is not None, "the page gave no answer"
    return json.loads(html.unescape(found[1]))


def _run(page: Path, *more: str) -> subprocess.CompletedProcess[str]:
    profile = page.parent / "profile"
    return subprocess.run(
        ["chromium", *_FLAGS, f"--user-data-dir={profile}", *more, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=_TIME_S,
        check=True,
    )


def _complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if ":CONSOLE" in line]

"""The bar on a real terminal."""

import os
import pty
import re
import subprocess
import sys


def test_prints_and_log_lines_do_not_break_a_bar_on_a_real_terminal():
    script = """
import logging
from paceline.observe import make_progress, setup_logging
setup_logging(0, 1)
progress = make_progress(0, env={})
progress.begin(1, 1000, "mnist")
progress.update(1, 500, 0.5, 100.0)
print("from print")
logging.getLogger("paceline.x").warning("from log")
progress.close()
print("at the end")
"""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    try:
        command = [sys.executable, "-c", script]
        subprocess.run(command, stdout=theirs, stderr=theirs, env=env, check=True, timeout=60)
        text = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "\r\x1b[2Kfrom print\r\nepoch 1/1 " in text
    assert re.search(r"\r\x1b\[2K[0-9:]{8} \[rank 0\] warning: from log\r\nepoch 1/1 ", text)
    assert text.endswith("\x1b[2Kat the end\r\n")


def test_importing_observe_imports_no_rich():
    script = "import sys, paceline.observe; print(*sorted({'rich', 'torch'} & set(sys.modules)))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""

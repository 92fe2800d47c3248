"""docs/settings.md says what the code says."""

import runpy
from pathlib import Path

from paceline.config.flags import SETTINGS

SCRIPT = Path(__file__).parents[3] / "scripts" / "settings_page.py"


def test_the_tables_are_up_to_date():
    script = runpy.run_path(str(SCRIPT))
    page = script["PAGE"].read_text()
    assert script["update"](page) == page, "run: python scripts/settings_page.py"


def test_every_setting_has_a_row_with_all_columns():
    script = runpy.run_path(str(SCRIPT))
    rows = [line for line in script["render_tables"]().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [setting.key for setting in SETTINGS]
    for row in rows:
        setting, _, default, values, meaning = row.strip("| ").split(" | ")
        assert all((setting, default, values, meaning)), row


def test_a_page_that_is_not_up_to_date_is_put_right():
    script = runpy.run_path(str(SCRIPT))
    page = script["PAGE"].read_text()
    stale = page.replace("| `epochs` | `--epochs` | 5 |", "| `epochs` | `--epochs` | 6 |")
    assert stale != page
    assert script["update"](stale) == page

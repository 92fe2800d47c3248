"""What a run reports: events, history, progress, the final table, logging."""

from paceline.core.files import json_safe, write_atomically
from paceline.observe.events import EventLog, read_events
from paceline.observe.history import EpochRecord, History, TimeSplit
from paceline.observe.log import setup_logging
from paceline.observe.progress import (
    BarProgress,
    NoProgress,
    PlainProgress,
    Progress,
    make_progress,
)
from paceline.observe.report import final_table, render_final
from paceline.observe.stopwatch import Stopwatch

__all__ = [
    "BarProgress",
    "EpochRecord",
    "EventLog",
    "History",
    "NoProgress",
    "PlainProgress",
    "Progress",
    "Stopwatch",
    "TimeSplit",
    "final_table",
    "json_safe",
    "make_progress",
    "read_events",
    "render_final",
    "setup_logging",
    "write_atomically",
]

"""Notices ranks that stall: who waits for whom, and who has stopped or ended."""

from paceline.runtime.watchdog.sections import watched
from paceline.runtime.watchdog.thread import start_watch

__all__ = ["start_watch", "watched"]

"""The report of a run as one page of HTML, without network or scripts."""

from paceline.observe.page.make import write_report

__all__ = ["write_report"]

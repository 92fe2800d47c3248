"""Inject faults at a chosen rank and step, to test how a program handles them."""

from paceline.testing.faults import Fault
from paceline.testing.inject import Inject

__all__ = ["Fault", "Inject"]

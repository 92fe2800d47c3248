"""Faults at a chosen rank and step, to try how a program bears them."""

from paceline.testing.faults import Fault
from paceline.testing.inject import Inject

__all__ = ["Fault", "Inject"]

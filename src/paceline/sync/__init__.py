"""Carrying out a rule: exchanges between ranks, and the parameter server."""

from paceline.sync.asynchronous.base import AsynchronousExchange
from paceline.sync.interface import Contribution, Exchange, StepOutcome
from paceline.sync.make import (
    is_asynchronous,
    load_common_weights,
    load_weights,
    make_exchange,
    next_exchange_id,
    with_common_weights,
)
from paceline.sync.settings import ExchangeContext, ExchangeSettings, check_settings, make_settings

__all__ = [
    "AsynchronousExchange",
    "Contribution",
    "Exchange",
    "ExchangeContext",
    "ExchangeSettings",
    "StepOutcome",
    "check_settings",
    "is_asynchronous",
    "load_common_weights",
    "load_weights",
    "make_exchange",
    "make_settings",
    "next_exchange_id",
    "with_common_weights",
]

"""The rules by which replicas keep pace: pure mathematics."""

from paceline.core.vectors import Vector
from paceline.rules.average import Average
from paceline.rules.base import (
    CentreRule,
    ExchangeKind,
    GossipRule,
    GradientRule,
    PushTerms,
    Rule,
    State,
    WeightRule,
)
from paceline.rules.bsp import BSP
from paceline.rules.diloco import DiLoCo
from paceline.rules.downpour import Downpour
from paceline.rules.easgd import EASGD
from paceline.rules.gossip import Gossip
from paceline.rules.registry import RULES, describe_rule, make_rule

__all__ = [
    "BSP",
    "EASGD",
    "RULES",
    "Average",
    "CentreRule",
    "DiLoCo",
    "Downpour",
    "ExchangeKind",
    "Gossip",
    "GossipRule",
    "GradientRule",
    "PushTerms",
    "Rule",
    "State",
    "Vector",
    "WeightRule",
    "describe_rule",
    "make_rule",
]

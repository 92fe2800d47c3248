"""No launcher and no scheduler: a process by itself."""

from collections.abc import Mapping

from paceline.cluster.identity import Environment, WorldSizeAdvice, describe_script

REMEDIES: Mapping[str, WorldSizeAdvice] = {
    "none": WorldSizeAdvice(
        "PACELINE_RANKS asks for {n} tasks",
        "Start the ranks with `paceline run -n {n}`, or unset PACELINE_RANKS.",
    )
}


def read(env: Mapping[str, str]) -> Environment:
    return describe_script("none", 1)

"""torchrun: processes that torch's launcher started. It starts them without MPI."""

from collections.abc import Mapping

from paceline.cluster.identity import Environment, WorldSizeAdvice, read_count, read_rank

REMEDIES: Mapping[str, WorldSizeAdvice] = {
    "torchrun": WorldSizeAdvice(
        "torchrun started {n} processes",
        "torchrun tells MPI nothing of the others. Start with `paceline run -n {n} script.py` "
        "instead of torchrun.",
    )
}


def read(env: Mapping[str, str]) -> Environment | None:
    # RANK and WORLD_SIZE alone are set by many scripts, also for ranks of mpirun.
    if "TORCHELASTIC_RUN_ID" not in env:
        return None
    # The only process of torchrun is like any other: it may be a rank, and may start ranks.
    if read_count(env, "WORLD_SIZE") == 1:
        return None
    return read_rank(env, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

"""Through interruptions every sample is trained on exactly once per epoch, whoever goes on."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.async_runs import RULES, Numbers
from support.line_problem import BATCH, SAMPLES

from paceline.comm import SoloWorld, run_world
from paceline.errors import CheckpointError, Interrupted
from paceline.rules import BSP, EASGD, Average, DiLoCo, Gossip
from paceline.training.callbacks import Callback
from paceline.training.trainer import Trainer

EPOCHS = 3
SYNCHRONOUS = {
    "bsp": BSP(),
    "average every 3": Average(every=3),
    "average by time": Average(every="0.002s"),
    "average": Average(),
    "diloco": DiLoCo(every=2),
}


class After(Callback):
    """Interrupts when the rank has trained on so many batches."""

    def __init__(self, batches):
        self.left = batches

    def on_batch_end(self, trainer, step, logs):
        self.left -= 1
        if self.left == 0:
            trainer.interrupt()


def go_on(folder, ranks, rule, stop_after=None, batch_size=BATCH, delays=None, data=None, **more):
    """What all ranks saw; whether they were through: asynchronous workers may do all of it before
    the one that is to be interrupted has had so many batches."""
    asked = After(stop_after[1]) if stop_after is not None else None
    numbers = np.arange(SAMPLES, dtype=np.float64)[:, None] if data is None else data
    delays = delays or [0.0] * ranks

    def program(world):
        model = Numbers(delays[world.rank])
        chosen = stop_after is not None and world.rank == stop_after[0] % world.size
        trainer = Trainer(
            model.build, numbers, world=world, rule=rule, epochs=EPOCHS, progress="off",
            run_dir=str(folder), resume="auto", data={"batch_size": batch_size, "prefetch": 0},
            callbacks=[asked] if chosen else [], **more,
        )  # fmt: skip
        try:
            trainer.fit()
        except Interrupted:
            return model.seen, False
        return model.seen, True

    found = run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]
    assert len({through for _, through in found}) == 1, "some were through and others were not"
    assert asked is None or asked.left >= -2, "it was asked to end, and went on"
    return [sample for seen, _ in found for sample in seen], found[0][1]


def check_all(seen):
    assert Counter(seen) == dict.fromkeys(range(SAMPLES), EPOCHS)


@pytest.mark.parametrize(("rule", "exchange", "ranks"), RULES.values(), ids=RULES)
@pytest.mark.parametrize("stop", [(0, 1), (1, 3), (0, 7)], ids=str)
@pytest.mark.parametrize("every", [None, 1])
def test_asynchronous_workers_go_on(tmp_path, rule, exchange, ranks, stop, every):
    settings = {"delays": [0.001 * (rank % 2) for rank in range(ranks)], "checkpoint_every": every}
    settings["exchange"] = exchange
    seen, through = go_on(tmp_path / "run", ranks, rule, stop, **settings)
    if not through:
        rest, through = go_on(tmp_path / "run", ranks, rule, **settings)
        seen += rest
    assert through
    check_all(seen)


@pytest.mark.parametrize(
    ("rule", "exchange", "sizes"),
    [
        (EASGD(every=2), {}, (3, 2, 4)),
        (EASGD(every=2), {"servers": 1}, (4, 3, 5)),
        (Gossip(probability=0.5), {}, (3, 2, 4)),
    ],
    ids=["easgd", "easgd with a server", "gossip"],
)
def test_other_numbers_of_them_go_on(tmp_path, rule, exchange, sizes):
    seen, through = [], False
    for ranks, stop in zip(sizes, [(0, 4), (1, 5), None], strict=True):
        if not through:  # the others may have done all of it meanwhile
            more, through = go_on(tmp_path / "run", ranks, rule, stop, exchange=exchange)
            seen += more
    assert through
    check_all(seen)


@pytest.mark.parametrize("rule", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 25), st.integers(2, 9)),
        max_size=3,
    )
)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_other_numbers_of_ranks_and_batches_go_on(tmp_path, rule, interruptions):
    folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    seen, through = [], False
    for ranks, rank, batches, batch_size in interruptions:
        if not through:
            more, through = go_on(folder, ranks, rule, (rank, batches), batch_size)
            seen += more
    if not through:
        seen += go_on(folder, 2, rule)[0]
    check_all(seen)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_stream_goes_on(tmp_path, ranks):
    def stream():
        return (np.array([number]) for number in np.arange(SAMPLES, dtype=np.float64))

    seen, through = go_on(tmp_path / "run", 2, BSP(), (0, 5), data=stream)
    assert not through
    rest, through = go_on(tmp_path / "run", ranks, BSP(), data=stream)
    assert through
    check_all(seen + rest)


def test_numbered_batches_keep_their_size(tmp_path):
    go_on(tmp_path / "run", 2, EASGD(every=2), (0, 3))
    with pytest.raises(CheckpointError, match="batch was 6, is 7"):
        go_on(tmp_path / "run", 2, EASGD(every=2), batch_size=7)

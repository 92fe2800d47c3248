"""What a checkpoint of workers without a centre holds."""

from support.async_runs import count_through

from paceline.checkpoint.store import Store
from paceline.checkpoint.tree import split
from paceline.rules import Gossip


def test_each_worker_saves_its_replica_once(tmp_path):
    """Replicas are most of a checkpoint: a second copy of each would double it."""
    count_through(tmp_path, Gossip(probability=0.5), 3, checkpoint_every="epoch")
    store = Store(tmp_path / "run" / "checkpoints")
    for rank in range(3):
        part = store.read(store.names()[-1], f"rank-{rank}")
        replica = part["parameters"].tobytes()
        arrays = split(part)[0].items()
        assert [place for place, array in arrays if array.tobytes() == replica] == ["parameters"]

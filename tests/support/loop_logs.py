"""What the ranks of a loop have written that some of them did not live to end."""

import json
from collections import Counter
from itertools import permutations


class Logs:
    """What the ranks wrote."""

    def __init__(self, folder, lost, stderr):
        texts = {int(path.stem): path.read_text() for path in folder.glob("*.log")}
        self.of = {rank: [*map(json.loads, text.splitlines())] for rank, text in texts.items()}
        self.lost, self.stderr = lost, stderr
        self.left = [rank for rank in self.of if rank not in lost]

    @property
    def ends(self):
        return [self.of[rank][-1] for rank in self.left]

    def batches(self, rank, epoch):
        """Those that its steps were about, the last one maybe cut short by its death."""
        entries = [entry for entry in self.of[rank] if entry.get("epoch") == epoch]
        return [entry["samples"] for entry in entries if "begun" in entry]

    def taken(self, rank, epoch):
        """Steps that it has come out of."""
        return sum(entry.get("epoch") == epoch for entry in self.of[rank] if "done" in entry)


def kept_of_the_lost(logs, epoch, samples):
    """How many steps of each lost rank counted in the epoch, if each sample was used once."""
    left = Counter(
        sample for rank in logs.left for batch in logs.batches(rank, epoch) for sample in batch
    )
    assert set(left.values()) == {1}, "some came twice"
    missing = set(range(samples)) - set(left)
    # What a rank lost may have been dealt to one that was lost later, and counted there.
    found = (_share_out(missing, logs, epoch, order) for order in permutations(logs.lost))
    kept = next((kept for kept in found if kept is not None), None)
    assert kept is not None, f"{sorted(missing)} were not used once"
    return kept


def _share_out(missing, logs, epoch, order):
    kept = {}
    for rank in order:
        kept[rank] = 0
        for batch in logs.batches(rank, epoch):
            if not missing.issuperset(batch):
                break
            missing = missing - set(batch)
            kept[rank] += 1
    return None if missing else kept

"""Downpour: workers push their updates to a centre and pull those of the others.

paceline run -n 2 -- examples/downpour.py

Takes a few seconds. A push is stale if the centre has changed since the worker last pulled.
"""

from collections import Counter

import paceline
from paceline.observe import read_events

# Every 5 steps a worker pushes the sum of its steps. With agn that sum is divided by 5: then
# long windows and many workers do not make the centre overshoot.
rule = paceline.Downpour(push_every=5, pull_every=5, staleness="agn")
result = paceline.Trainer("mnist", "digits", rule=rule, epochs=3).fit()

if paceline.init().rank == 0:
    events = read_events(result.run_dir / "events")
    pushes: Counter[int] = Counter(e["staleness"] for e in events if e["event"] == "exchange")
    for staleness, count in sorted(pushes.items()):
        print(f"{count} pushes were {staleness} updates behind the centre")
    print(f"val accuracy {result.summary['val_accuracy']:.4f}")

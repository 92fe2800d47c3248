"""EASGD: each worker trains alone, tied to a common centre as if by a spring.

paceline run -n 2 -- examples/easgd.py

Takes a few seconds. Workers never wait for each other: each exchanges with the centre alone.
"""

import paceline
from paceline.observe import read_events

# Every 10 steps worker and centre pull each other by 0.45 of the distance between them. A weaker
# force lets workers explore further from the centre; the default is 0.9 / workers.
rule = paceline.EASGD(every=10, force=0.45)
result = paceline.Trainer("mnist", "digits", rule=rule, epochs=3).fit()

if paceline.init().rank == 0:
    exchanges = [e for e in read_events(result.run_dir / "events") if e["event"] == "exchange"]
    distances = [e["distance"] for e in exchanges if e["distance"] is not None]
    ages = [e["staleness"] for e in exchanges if e["staleness"] is not None]
    behind = sum(ages) / len(ages)
    print(f"{len(exchanges)} exchanges; others had {behind:.1f} between two of the same worker")
    print(f"distance from the centre: {distances[0]:.3f} at first, {distances[-1]:.3f} at last")
    print(f"val accuracy {result.summary['val_accuracy']:.4f}")

"""The distributed epoch: every rank trains alone, weights are averaged once an epoch.

paceline run -n 2 -- examples/average.py
"""

import paceline

result = paceline.Trainer("mnist", "digits", rule="average", epochs=5).fit()
if paceline.init().rank == 0:
    print(f"val accuracy {result.summary['val_accuracy']:.4f}")

"""Local SGD: every rank trains alone, and weights are averaged once per epoch.

paceline run -n 2 -- examples/average.py
"""

import paceline

result = paceline.Trainer("mnist", "digits", rule="average", epochs=5).fit()
if paceline.init().rank == 0:
    print(f"val accuracy {result.summary['val_accuracy']:.4f}")

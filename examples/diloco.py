"""DiLoCo: workers train alone; an outer optimizer moves their common centre.

paceline run -n 2 -- examples/diloco.py
"""

import paceline

rule = paceline.DiLoCo(every=16, outer_lr=0.7, outer_momentum=0.5)
result = paceline.Trainer("mnist", "digits", rule=rule, epochs=5).fit()
if paceline.init().rank == 0:
    print(f"val accuracy {result.summary['val_accuracy']:.4f}")

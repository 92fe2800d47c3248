"""Train by `model.fit` on many ranks: a callback, an optimizer that averages, and data.

    model.fit(
        paceline.keras.shard(x, y, batch_size=32),
        shuffle=False,
        epochs=5,
        callbacks=[paceline.keras.KeepPace("average", every=8)],
    )

Run the script under `paceline run -n 4 -- script.py` for 4 ranks; alone it is plain `fit`.
"""

from paceline.frameworks.keras.backend import prepare_backend

prepare_backend()  # Keras looks for its backend when it is imported

from paceline.keras.averaging import averaged, start_equal  # noqa: E402
from paceline.keras.batches import ShardedBatches, shard  # noqa: E402
from paceline.keras.keep_pace import KeepPace  # noqa: E402

__all__ = ["KeepPace", "ShardedBatches", "averaged", "shard", "start_equal"]

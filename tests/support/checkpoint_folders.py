"""What lies in a folder of checkpoints beside them."""

from __future__ import annotations

from paceline.checkpoint.store import Store

FOLDER_MARKS = (".draft-", ".gone-", ".old-")


def hidden(store: Store) -> list[str]:
    """Folders that are not checkpoints yet, or no longer."""
    return [path.name for path in store.folder.iterdir() if path.name.startswith(FOLDER_MARKS)]

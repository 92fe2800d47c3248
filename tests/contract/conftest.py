"""What all contracts are tested in."""

from __future__ import annotations

import pytest
from support.one_thread import keep_torch_to_one_thread


@pytest.fixture(autouse=True)
def one_thread() -> None:
    keep_torch_to_one_thread()

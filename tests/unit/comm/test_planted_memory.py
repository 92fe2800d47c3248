"""Node memory in a place where other users write, too."""

import os
from pathlib import Path

import pytest
from support.strangers import give_away, needs_root

from paceline.comm.node_memory import PREFIX, make_file, open_file


@pytest.fixture
def file(tmp_path) -> Path:
    return make_file(tmp_path, 4096)


def test_node_memory_is_for_its_user_alone(file):
    assert file.name.startswith(PREFIX)
    assert file.stat().st_mode & 0o777 == 0o600
    open_file(file, 4096, 1).close()


@needs_root
def test_what_another_user_has_put_in_its_place_is_not_mapped(file):
    give_away(file)
    with pytest.raises(OSError, match="belongs to user 65534"):
        open_file(file, 4096, 1)


def test_no_link_in_its_place_is_followed(file, tmp_path):
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="it is a link"):
        open_file(file, 4096, 1)


@pytest.mark.timeout(20)
def test_no_fifo_in_its_place_is_waited_for(file):
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(OSError, match="not a plain file"):
        open_file(file, 4096, 1)

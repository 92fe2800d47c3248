"""Where there is too little shared memory."""

import re

import pytest

from paceline.comm.node_memory import make_file
from paceline.errors import WorldError


def test_the_advice_fits_every_rule(tmp_path):
    with pytest.raises(WorldError) as caught:
        make_file(tmp_path, 10**18)
    assert re.search(r"1000000000000000000 bytes .* and \d+ are free", str(caught.value))
    assert f"Enlarge {tmp_path}" in str(caught.value)
    assert "rule." not in str(caught.value)

"""Many keep_pace blocks in one program, one after the other and within each other."""

import pytest

PROGRAM = "many_blocks"


def test_two_models_that_overlap_have_each_their_own_way(resident):
    found = [resident(2, f"{PROGRAM}:train_two_at_once", overlap) for overlap in (True, False)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("rule", ["bsp", "average", "easgd", "gossip"])
def test_a_block_gives_its_communicators_back(resident, rule):
    assert resident.on_all(2, f"{PROGRAM}:count_left", 10, rule) == [0, 0]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("rule", ["bsp", "easgd"])
def test_a_program_may_open_thousands(own_job, rule):
    assert own_job(2, f"{PROGRAM}:open_blocks", 3000, rule, timeout_s=380) == 3000

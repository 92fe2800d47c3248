import pytest
from support.gpu_nodes import a_node

from paceline.cluster.detect import Environment
from paceline.cluster.gpus import assign_gpus, find_gpus, share_of_gpus

CUDA = "CUDA_VISIBLE_DEVICES"


def a_rank(local_rank, local_size=2, size=4, launched=True):
    return Environment("openmpi", local_rank, size, local_rank, local_size, launched)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0", ("0",)),
        ("3,1", ("3", "1")),
        ("0, 2", ("0", "2")),
        ("1,-1,2", ("1",)),
        ("GPU-8932f937,GPU-1d2a", ("GPU-8932f937", "GPU-1d2a")),
        ("MIG-GPU-8932f937/1/0,MIG-ab12", ("MIG-GPU-8932f937/1/0", "MIG-ab12")),
    ],
)
def test_the_list_in_the_environment_counts_whatever_the_driver_shows(tmp_path, text, expected):
    assert find_gpus({CUDA: text}, a_node(tmp_path, known=8, files=8)) == expected


@pytest.mark.parametrize(
    ("known", "files", "expected"),
    [(0, 0, ()), (2, 2, ("0", "1")), (3, 0, ("0", "1", "2")), (4, 1, ("0",))],
)
def test_without_a_list_the_driver_is_looked_at(tmp_path, known, files, expected):
    assert find_gpus({"PATH": ""}, a_node(tmp_path, known, files)) == expected


@pytest.mark.parametrize(
    ("visible", "ranks", "expected"),
    [
        ("01", 2, ["0", "1"]),
        ("01", 5, ["0", "1", "0", "1", "0"]),
        ("0123", 2, ["0", "1"]),
        ("0123", 1, ["0123"]),
        ("3", 3, ["3", "3", "3"]),
        ("", 2, ["", ""]),
    ],
)
def test_the_ranks_of_a_node_get_gpus_in_turn(visible, ranks, expected):
    assert [share_of_gpus(visible, rank, ranks) for rank in range(ranks)] == list(
        map(tuple, expected)
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({CUDA: "4,6"}, {CUDA: "6"}),
        ({CUDA: "MIG-a,MIG-b"}, {CUDA: "MIG-b"}),
        ({CUDA: "5"}, {CUDA: "5"}),
        ({CUDA: ""}, {CUDA: ""}),
        ({CUDA: "-1"}, {CUDA: "-1"}),
        ({"HIP_VISIBLE_DEVICES": "4,6"}, {"HIP_VISIBLE_DEVICES": "6"}),
        ({"HIP_VISIBLE_DEVICES": "4,6", CUDA: "4,6"}, {"HIP_VISIBLE_DEVICES": "6", CUDA: "6"}),
        ({"ROCR_VISIBLE_DEVICES": "4,6"}, {"ROCR_VISIBLE_DEVICES": "6"}),
        (
            {"ROCR_VISIBLE_DEVICES": "4,6", CUDA: "0,1"},
            {"ROCR_VISIBLE_DEVICES": "4,6", CUDA: "1"},
        ),
        ({CUDA: "4,6", "PACELINE_ASSIGN_GPUS": "0"}, {CUDA: "4,6", "PACELINE_ASSIGN_GPUS": "0"}),
        ({CUDA: "4,6", "PACELINE_ASSIGN_GPUS": "1"}, {CUDA: "6", "PACELINE_ASSIGN_GPUS": "1"}),
    ],
)
def test_a_rank_sees_its_own_gpu_alone(tmp_path, before, after):
    env = dict(before)
    assign_gpus(a_rank(1), env, a_node(tmp_path))
    assert env == after


def test_ranks_find_the_gpus_of_the_node_by_themselves(tmp_path):
    node = a_node(tmp_path, known=2, files=2)
    seen = []
    for local_rank in range(3):
        env: dict[str, str] = {}
        assign_gpus(a_rank(local_rank, local_size=3), env, node)
        seen.append(env[CUDA])
    assert seen == ["0", "1", "0"]


def test_dealing_twice_is_dealing_once():
    env = {CUDA: "0,1,2"}
    for _ in range(2):
        assign_gpus(a_rank(2, local_size=3), env)
    assert env == {CUDA: "2"}


@pytest.mark.parametrize("gpus_here", [0, 1])
def test_where_there_is_nothing_to_deal_nothing_is_set(tmp_path, gpus_here):
    env: dict[str, str] = {}
    assign_gpus(a_rank(1), env, a_node(tmp_path, gpus_here, gpus_here))
    assert env == {}


@pytest.mark.parametrize(
    "process",
    [a_rank(1, launched=False), a_rank(None), a_rank(0, local_size=1)],
    ids=["no rank", "a rank that does not know which", "the only one of its node"],
)
def test_all_gpus_stay_visible_to(process):
    env = {CUDA: "0,1"}
    assign_gpus(process, env)
    assert env == {CUDA: "0,1"}


def test_a_rank_that_is_not_told_of_its_neighbours_expects_some():
    env = {CUDA: "0,1"}
    assign_gpus(a_rank(1, local_size=None), env)
    assert env == {CUDA: "1"}

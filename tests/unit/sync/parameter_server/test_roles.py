"""Who trains and who holds the centre, and what the user is told of it."""

import pytest

from paceline.comm import run_world
from paceline.errors import ConfigError
from paceline.sync.parameter_server.roles import Roles, assign_roles

ONE_NODE = [(0, 1, 2, 3)]
TWO_NODES = [(0, 1, 2), (3, 4, 5)]
UNEVEN = [(0,), (1, 2)]


def roles_on(nodes, servers):
    def program(world):
        world.node_ranks = next(ranks for ranks in nodes if world.rank in ranks)
        return assign_roles(world, servers)

    found = run_world(sum(map(len, nodes)), program)
    assert all(roles == found[0] for roles in found)
    return found[0]


@pytest.mark.parametrize(
    ("nodes", "servers", "workers", "hosts", "words"),
    [
        (ONE_NODE, None, (0, 1, 2, 3), (), "in the node's memory (all ranks share it)"),
        (ONE_NODE, 0, (0, 1, 2, 3), (), "in the node's memory (as exchange.servers says)"),
        (ONE_NODE, 1, (0, 1, 2), (3,), "3 workers, server 3 (as exchange.servers says)"),
        (ONE_NODE, 3, (0,), (1, 2, 3), "1 workers, servers 1, 2, 3"),
        (TWO_NODES, None, (0, 1, 3, 4), (2, 5), "servers 2, 5 (one rank on each of 2 nodes)"),
        (TWO_NODES, 1, (0, 1, 3, 4, 5), (2,), "server 2"),
        (TWO_NODES, 3, (0, 3, 4), (1, 2, 5), "servers 1, 2, 5"),
        (TWO_NODES, 0, (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5), "each worker holds a piece"),
        (UNEVEN, None, (0, 1, 2), (0, 1, 2), "better used to train"),
        (UNEVEN, 2, (0,), (1, 2), "servers 1, 2"),  # rank 0 leads: it is never a server
    ],
)
def test_roles(nodes, servers, workers, hosts, words):
    roles = roles_on(nodes, servers)
    assert (roles.workers, roles.holders) == (workers, hosts)
    assert words in roles.describe()


def test_somebody_must_train():
    with pytest.raises(ConfigError, match=r"exchange\.servers is 4 and there are 4 ranks"):
        roles_on(ONE_NODE, 4)


def test_of_the_ranks_that_are_left_one_trains():
    def program(world):
        world.generation_number = 1
        return assign_roles(world, 2), assign_roles(world, 1)

    two, one = run_world(2, program)[0]
    assert two == Roles((0,), (1,), "of those that are left, one trains")
    assert one.holders == (1,)
    alone = run_world(1, lambda world: program(world)[0])[0]
    assert (alone.workers, alone.holders) == ((0,), ())

from paceline.cluster.commands import parse_mpi_list


def test_plugins_of_srun_are_read_from_old_and_new_forms():
    old = "srun: MPI types are...\nsrun: none\nsrun: pmi2\n"
    new = "MPI plugin types are...\n\tcray\n\tpmix\nspecific pmix plugin versions available: a,b\n"
    assert parse_mpi_list(old) == ["none", "pmi2"]
    assert parse_mpi_list(new) == ["cray", "pmix", "a", "b"]

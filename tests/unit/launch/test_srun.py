import pytest

from paceline.errors import LaunchError
from paceline.launch.srun import choose_pmi

WITH_PMIX = ["pmix", "none", "cray_shasta", "pmi2", "pmix_v4"]
WITHOUT = ["none", "cray_shasta", "pmi2"]


@pytest.mark.parametrize(
    ("library", "listed", "plugin"),
    [
        ("Open MPI v5.0.11, package: ...", WITH_PMIX, "pmix"),
        ("Open MPI v5.0.11", ["none", "pmix_v3", "pmix_v4"], "pmix_v3"),
        ("MPICH Version:      5.0.2", WITH_PMIX, "pmi2"),
        ("Intel(R) MPI Library 2021.13", WITHOUT, "pmi2"),
        ("Some MPI 1.0", WITH_PMIX, "pmix"),
    ],
)
def test_the_plugin_fits_the_library(library, listed, plugin):
    assert choose_pmi(library, listed) == plugin


def test_without_a_plugin_that_fits_srun_is_refused():
    with pytest.raises(LaunchError, match=r"offers none, cray_shasta, pmi2, which Open MPI.*PMIx"):
        choose_pmi("Open MPI v5.0.11", WITHOUT)

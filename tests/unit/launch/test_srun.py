import pytest

from paceline.errors import LaunchError
from paceline.launch.srun import choose_pmi

WITH_PMIX = (
    "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\n"
    "specific pmix plugin versions available: pmix_v4"
)
WITHOUT = "MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2"


@pytest.mark.parametrize(
    ("library", "listed", "plugin"),
    [
        ("Open MPI v5.0.11, package: ...", WITH_PMIX, "pmix"),
        ("Open MPI v5.0.11", "none pmix_v3 pmix_v4", "pmix_v4"),
        ("MPICH Version:      5.0.2", WITH_PMIX, "pmi2"),
        ("Intel(R) MPI Library 2021.13", WITHOUT, "pmi2"),
        ("Some MPI 1.0", WITH_PMIX, "pmix"),
    ],
)
def test_the_plugin_fits_the_library(library, listed, plugin):
    assert choose_pmi(library, listed) == plugin


def test_without_a_plugin_that_fits_srun_is_refused():
    with pytest.raises(LaunchError, match=r"offers cray_shasta, none, pmi2, but Open MPI.*pmix"):
        choose_pmi("Open MPI v5.0.11", WITHOUT)

"""mpi_learn's classes on top of Paceline's own rules.

    from paceline.mpi_learn import Algo, H5Data, ModelFromJson, MPIManager

Nothing here trains or communicates by itself. docs/from-mpi-learn.md lists the differences.
"""

from paceline.mpi_learn.algo import Algo
from paceline.mpi_learn.builders import (
    ModelBuilder,
    ModelFromJson,
    ModelFromJsonTF,
    ModelPytorch,
    MPIModel,
)
from paceline.mpi_learn.data import Data, H5Data, data_class_getter
from paceline.mpi_learn.manager import MPIManager

__all__ = [
    "Algo",
    "Data",
    "H5Data",
    "MPIManager",
    "MPIModel",
    "ModelBuilder",
    "ModelFromJson",
    "ModelFromJsonTF",
    "ModelPytorch",
    "data_class_getter",
]

"""MPIManager: starts the training of an mpi_learn script, on top of Paceline's Trainer."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Sequence
from typing import Any

from paceline.comm import World
from paceline.errors import ConfigError
from paceline.mpi_learn.algo import Algo
from paceline.mpi_learn.builders import ModelBuilder
from paceline.mpi_learn.data import Data
from paceline.mpi_learn.process import MPIProcess, RunRequest
from paceline.mpi_learn.stops import read_stops
from paceline.runtime.failure import fail
from paceline.runtime.world import init

_log = logging.getLogger("paceline.mpi_learn")


class MPIManager:
    """Trains the builder's model on the data, by the Algo, on all ranks of `comm`.

        manager = MPIManager(MPI.COMM_WORLD, data, algo, builder, 3, train_files, val_files)
        if comm.Get_rank() == 0:
            histories = manager.process.train()
            manager.free_comms()

    As in mpi_learn, rank 0 trains when `process.train()` is called, and every other rank at once,
    in this constructor. `train_list` and `val_list` are names of files, or the name of a list of
    them. `num_masters` ranks hold the centre and do not train; 0: all ranks train. Keywords that
    are not listed are settings of the run, such as `run_dir`, `seed` or `progress`.
    """

    def __init__(
        self,
        comm: Any,
        data: Data,
        algo: Algo,
        model_builder: ModelBuilder,
        num_epochs: int,
        train_list: Sequence[Any] | str,
        val_list: Sequence[Any] | str,
        *,
        num_masters: int = 1,
        num_processes: int = 1,
        synchronous: bool = False,
        callbacks: Sequence[Any] = (),
        worker_callbacks: Sequence[Any] = (),
        verbose: bool = False,
        custom_objects: Any = None,
        early_stopping: Any = None,
        target_metric: Any = None,
        monitor: bool = False,
        thread_validation: bool = False,
        checkpoint: str | None = None,
        checkpoint_interval: int = 1,
        **settings: Any,
    ) -> None:
        _refuse(num_processes, worker_callbacks, custom_objects)
        self.world = init()
        _check_comm(comm, self.world)
        masters = _fit_masters(num_masters, self.world, synchronous)
        self.data, self.algo, self.model_builder = data, algo, model_builder
        self.num_epochs, self.train_list, self.val_list = num_epochs, train_list, val_list
        self.num_masters, self.synchronous, self.verbose = masters, synchronous, verbose
        self.num_workers = self.world.size - masters
        self.callbacks = list(callbacks)
        self.is_master = self.should_validate = self.world.rank == 0
        self.worker_id = self.world.rank
        self.comm_block, self.comm_masters = comm, None
        if monitor or thread_validation:
            _log.info("monitor and thread_validation have no effect: see docs/from-mpi-learn.md")
        saving = {} if checkpoint is None else _save_to(checkpoint, checkpoint_interval)
        stops = read_stops(early_stopping, target_metric)
        masters_hold_it = {} if synchronous else {"servers": masters}
        exchange = {**masters_hold_it, **settings.pop("exchange", {})}
        request = RunRequest(
            num_epochs,
            train_list,
            val_list,
            algo.rule(synchronous),
            self.callbacks,
            verbose,
            {"stop": stops, "exchange": exchange, **saving, **settings},
        )
        self.process = MPIProcess(self.world, data, algo, model_builder, request)
        if self.world.rank:
            self.process.train()
        elif self.world.size > 1:
            atexit.register(self._check_trained)

    def train(self) -> dict[str, dict[str, list[float]]] | None:
        """The same as `process.train()`; None on all ranks but 0."""
        histories = self.process.train()
        return histories if self.world.rank == 0 else None

    def figure_of_merit(self) -> float | None:
        """1 minus the last accuracy of the validation, or its loss; None on all ranks but 0."""
        own = self.process.histories.get("0", {})
        if self.world.rank:
            return None
        accuracy, loss = own.get("val_acc"), own.get("val_loss")
        return 1.0 - accuracy[-1] if accuracy else loss[-1] if loss else None

    def free_comms(self) -> None:
        """Nothing to do: the communicator is the script's own."""

    def _check_trained(self) -> None:
        """The other ranks are training, and would wait forever for a rank 0 that never does."""
        if not self.process.began:
            error = "rank 0 ended without calling manager.process.train(); the others wait for it"
            fail(self.world, ConfigError(error))


def _refuse(num_processes: int, worker_callbacks: Any, custom_objects: Any) -> None:
    if num_processes != 1:
        raise ConfigError(
            f"num_processes is {num_processes}, expected 1: a worker is one rank here; start more "
            "ranks, or give each more threads"
        )
    if worker_callbacks:
        raise ConfigError(
            "worker_callbacks: Keras callbacks run once, on the leading rank; give them as "
            "callbacks, or a paceline.Callback, which every rank runs"
        )
    if custom_objects:
        raise ConfigError("custom_objects: write a ModelBuilder whose build_model uses them")


def _check_comm(comm: Any, world: World) -> None:
    """All started ranks train, in the world's order."""
    if comm is None:
        return
    size, rank = comm.Get_size(), comm.Get_rank()
    if (size, rank) != (world.size, world.rank):
        raise ConfigError(
            f"comm has {size} ranks, of which this is {rank}, and the world {world.size}, of which "
            f"this is {world.rank}; pass MPI.COMM_WORLD, and start each training as a separate "
            "job (mpirun, srun or paceline run)"
        )


def _fit_masters(masters: int, world: World, synchronous: bool) -> int:
    """A single rank cannot spare a master, and synchronous workers need none."""
    if not isinstance(masters, int) or masters < 0:
        raise ConfigError(f"num_masters is {masters!r}, expected 0 or more")
    return 0 if world.size == 1 or synchronous else masters


def _save_to(directory: str, interval: int) -> dict[str, Any]:
    if interval != 1:
        _log.info("checkpoint_interval is %s epochs: a checkpoint is saved each epoch", interval)
    return {"run_dir": directory, "checkpoint_every": "epoch"}

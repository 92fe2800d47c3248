"""A script for mpi_learn with a model of plain numpy; its imports alone are changed.

Arguments: the folder of the data, then what to do, one training after the other.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from paceline.mpi_learn import Algo, Data, ModelBuilder, MPIManager

EPOCHS = 3


class Files(Data):
    def load_data(self, in_file):
        with np.load(in_file) as arrays:
            return arrays["x"], arrays["y"]


class Softmax:
    """Softmax regression, trained by hand-written gradient descent."""

    metrics_names = ("loss", "acc")

    def __init__(self, what):
        self.what = what
        self.weights = [np.zeros((64, 4), np.float32), np.zeros(4, np.float32)]
        self.seen = []

    def compile(self, loss, optimizer, metrics):
        self.rate = optimizer["lr"]

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = [array.copy() for array in weights]

    def forward(self, x, y):
        scores = x @ self.weights[0] + self.weights[1]
        odds = np.exp(scores - scores.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        right = odds[np.arange(len(y)), y]
        return odds, [-np.log(right + 1e-9).mean(), (odds.argmax(1) == y).mean()]

    def train_on_batch(self, x, y):
        self.seen += x[:, 0].tolist()
        if self.what == "raise" and MPI.COMM_WORLD.Get_rank() == 1:
            raise ValueError("a worker that raises")
        odds, metrics = self.forward(x[:, 1:], y)
        odds[np.arange(len(y)), y] -= 1
        odds /= len(y)
        for array, gradient in zip(self.weights, (x[:, 1:].T @ odds, odds.sum(0)), strict=True):
            array -= self.rate * gradient
        return metrics

    def test_on_batch(self, x, y):
        return self.forward(x[:, 1:], y)[1]


class SoftmaxBuilder(ModelBuilder):
    def __init__(self, comm, what):
        super().__init__(comm)
        self.model = Softmax(what)

    def build_model(self):
        return self.model


def train(folder, what):
    comm = MPI.COMM_WORLD.Dup()
    if what == "comm":
        comm = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.Get_rank())
    algo = Algo("adam", loss="categorical_crossentropy", learning_rate=0.01)
    if what.startswith("easgd"):
        algo = Algo(None, mode="easgd", sync_every=5, elastic_lr=float(what.split(":")[1]))
    builder = SoftmaxBuilder(comm, what)
    manager = MPIManager(
        comm=comm,
        data=Files(batch_size=16),
        algo=algo,
        model_builder=builder,
        num_epochs=EPOCHS,
        train_list=sorted(map(str, folder.glob("train*.npz"))),
        val_list=sorted(map(str, folder.glob("test*.npz"))),
        synchronous=what in ("synchronous", "target"),
        target_metric="val_acc,>,0.3" if what == "target" else None,
    )
    if what == "forget":
        return
    if comm.Get_rank() == 0:
        histories = manager.process.train()
        manager.free_comms()
        manager.process.record_details("history.json", meta={"args": {"what": what}})
        own = histories["0"]
        print("TRAINED", what, "LOSS", own["val_loss"][-1], "EPOCHS", len(own["val_acc"]))
    seen = comm.gather(builder.model.seen)
    if comm.Get_rank() == 0:
        counts = np.unique([place for part in seen for place in part], return_counts=True)[1]
        print("SEEN", what, len(counts), set(counts.tolist()), [len(part) > 0 for part in seen])


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(Path(sys.argv[1]), name)

"""A script written for mpi_learn; only its imports are changed.

paceline run -n 3 -- examples/mpi_learn_script.py
"""

from pathlib import Path

import keras
from mpi4py import MPI

from paceline.data import digits
from paceline.data.builtin.mnist_files import write_files
from paceline.mpi_learn import Algo, H5Data, ModelBuilder, MPIManager


class Perceptron(ModelBuilder):
    def build_model(self):
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                layers.Flatten(),
                layers.Dense(256, activation="relu"),
                layers.Dense(10, activation="softmax"),
            ]
        )


comm = MPI.COMM_WORLD.Dup()
folder = Path("digits")
if comm.Get_rank() == 0 and not folder.exists():
    write_files(folder, digits.read_part, format="hdf5", files=6, force=False)
comm.barrier()

data = H5Data(batch_size=50, features_name="features", labels_name="labels")
data.set_file_names(sorted(map(str, folder.glob("mnist_train_*.h5"))))
val_list = sorted(map(str, folder.glob("mnist_test_*.h5")))
algo = Algo(
    "adam",
    loss="categorical_crossentropy",
    validate_every=data.count_data() // data.batch_size,
    sync_every=1,
)
callbacks = [keras.callbacks.ModelCheckpoint("perceptron.keras", monitor="val_loss")]
manager = MPIManager(
    comm=comm,
    data=data,
    algo=algo,
    model_builder=Perceptron(comm),
    num_epochs=5,
    train_list=data.file_names,
    val_list=val_list,
    callbacks=callbacks,
)

if comm.Get_rank() == 0:
    print(algo)
    histories = manager.process.train()
    manager.free_comms()
    manager.process.record_details("perceptron_history.json", meta={"epochs": 5})
    print(f"val accuracy {histories['0']['val_acc'][-1]:.4f}")
comm.barrier()

"""What each key of a Theano-MPI config means in Paceline.

The keys are those of the config files of theano_alexnet and Theano-MPI (github.com/uoguelph-mlrg),
2014 to 2016, with a function or a line for each; `theano_mpi` combines them.
"""

from __future__ import annotations

from paceline.config import theano_mpi_readers as readers
from paceline.config.theano_mpi_readers import MODES, Meaning, OldConfig, Reader, as_flag
from paceline.errors import ConfigError

_SCALED = (
    "Theano-MPI multiplied it by the number of workers, Paceline does not; for the same training "
    "give --lr with the product"
)


def refuse_if_set(note: str) -> Reader:
    """A key whose False is what Paceline does, and whose True is not supported."""

    def read(key: str, value: object, config: OldConfig) -> Meaning:
        if as_flag(key, value):
            raise ConfigError(f"{key} is True: {note}; set it to False")
        return Meaning(note="as always")

    return read


def ignore_if_set(note: str) -> Reader:
    """A key whose False is what Paceline does, and whose True makes little difference."""
    return lambda key, value, config: Meaning(note=note if as_flag(key, value) else "as always")


def rename(name: str, note: str = "") -> Reader:
    return lambda key, value, config: Meaning({name: value}, note)


def ignore(note: str) -> Reader:
    return lambda key, value, config: Meaning(note=note)


_NO_PORT = ignore("not needed: no port is opened")
_NO_DEVICE = ignore("not needed: each rank finds its device")
_DATA = ignore("not needed: data.train and data.validation name the data")
_UNTOUCHED = "not done: images are used as they are; do it in file.py:function"
_PIXELS, _PIXELS_IF_SET = ignore(_UNTOUCHED), ignore_if_set(_UNTOUCHED)
_SIZE = ignore("not needed: the images have their own size")
_TELLING = ignore("not needed: see progress, history.jsonl and the event log")
_PLACE = ignore("not needed: every run has its own directory in runs/ (run_dir)")

KEYS: dict[str, Reader] = {
    "sync_rule": readers.read_rule,
    "avg_freq": readers.read_period,
    "sync_freq": readers.read_period,
    **dict.fromkeys(MODES, readers.read_mode),
    "sync_start": readers.read_start,
    "exch_strategy": readers.read_strategy,
    "fp": readers.read_precision,
    "alpha": readers.read_alpha,
    "worker_alpha": readers.read_alpha,
    "server_alpha": readers.read_alpha,
    "alpha_step": readers.read_alpha,
    "alpha_minus": readers.read_alpha,
    "name": readers.read_name,
    "n_softmax_out": readers.read_classes,
    "n_epochs": rename("epochs"),
    "batch_size": rename("data.batch_size", "per rank, as in Theano-MPI"),
    "learning_rate": rename("optimizer.lr", _SCALED),
    "momentum": readers.read_momentum,
    "use_momentum": readers.read_use_momentum,
    "use_nesterov_momentum": readers.read_nesterov,
    "weight_decay": rename(
        "optimizer.weight_decay", "for all parameters; in Theano-MPI not for biases"
    ),
    "lr_policy": readers.read_policy,
    "lr_step": readers.read_steps,
    "lr_adapt_threshold": ignore("not needed: it belongs to lr_policy auto"),
    "val_freq": rename("validate_every"),
    "snapshot_freq": readers.read_snapshots,
    "resume_train": readers.read_resume,
    "load_path": ignore("see resume_train"),
    "load_epoch": ignore("not needed: the newest checkpoint is used"),
    "shuffle": rename("data.shuffle"),
    "random": readers.read_random,
    "weight_init_seed": rename("seed"),
    "dropout_init_seed": ignore("not needed: one seed for all"),
    "rand_crop": _PIXELS_IF_SET,
    "flip": _PIXELS_IF_SET,
    "use_data_layer": _PIXELS_IF_SET,
    "batch_crop_mirror": _PIXELS,
    "image_mean": _PIXELS,
    "mean_file": _PIXELS,
    "input_width": _SIZE,
    "input_height": _SIZE,
    "para_load": readers.read_loading,
    "file_batch_size": ignore("not needed: batches do not depend on files"),
    "train_folder": readers.read_folder,
    "val_folder": readers.read_folder,
    "dir_head": _DATA,
    "lmdb_head": _DATA,
    "label_folder": _DATA,
    "data_source": _DATA,
    "weights_dir": _PLACE,
    "record_dir": _PLACE,
    "print_freq": _TELLING,
    "print_info_every": _TELLING,
    "print_train_error": _TELLING,
    "verbose": _TELLING,
    "flag_top_5": ignore_if_set("not done: val_accuracy is top-1"),
    "monitor_grad": ignore_if_set("not done: gradient norms are not recorded"),
    "initial_val": ignore_if_set("not done: the first validation is after the first epoch"),
    "debug": refuse_if_set("it trained on a few files; give smaller data instead"),
    "pretrain": refuse_if_set("it trained a VGG of 11 layers; name model: file.py:function"),
    "source": ignore("not needed: there is one VGG"),
    "lib_conv": ignore("not needed: the framework has its own convolutions"),
    "cuda_aware": ignore("not needed: buffers are passed to MPI as they are"),
    "device": _NO_DEVICE,
    "gpushift": _NO_DEVICE,
    "gpu0": _NO_DEVICE,
    "gpu1": _NO_DEVICE,
    "sock_data": _NO_PORT,
    "sock_data0": _NO_PORT,
    "sock_data1": _NO_PORT,
    "sock_gpu": _NO_PORT,
}
"""Every supported key, and the function that reads it."""

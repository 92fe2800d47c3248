"""model.fit in pace, by every rule: keras_fit.py FOLDER [some|exit]; the backend: KERAS_BACKEND.

Rank 0 prints one JSON object: by name, what became of each case, or of the first `some` of them. To
compile a model takes longer than to train it: so cases that need no compiling of their own have one
model in common. With `exit`, rank 1 just ends in the middle of an epoch, as if all were well.
"""

import json
import logging
import sys
import warnings
from pathlib import Path

import keras
import numpy as np

from paceline import init, keep_pace
from paceline.comm import SoloWorld
from paceline.errors import TrainingError
from paceline.frameworks.random_state import seed_generators
from paceline.keras import KeepPace, averaged, shard, start_equal

BATCH = 8
SAMPLES = 4 * 2 * BATCH + 15  # the last step has 8 samples on rank 0 and 7 on rank 1
RULES = {
    "average": {"rule": "average", "every": 3},
    "average every step": {"rule": "average", "every": 1},
    "diloco": {"rule": "diloco", "every": 4, "outer_momentum": 0.5},
    "easgd": {"rule": "easgd", "every": 3},
    "downpour": {"rule": "downpour"},
    "gossip": {"rule": "gossip", "probability": 0.5},
}


class Cases:
    """What is tried, on one rank."""

    def __init__(self, world, folder):
        self.world, self.folder = world, folder
        rng = np.random.default_rng(3)
        self.x = rng.normal(size=(SAMPLES, 6)).astype("float32")
        self.y = self.x[:, :1] * self.x[:, 1:2] + self.x[:, 2:3]
        self.validation = self.x[:20], self.y[:20]
        self.model = build(norm=True, seed=world.rank)
        self.first = [weight.copy() for weight in self.model.get_weights()]

    def anew(self):
        """The common model as it was built, other weights on every rank."""
        self.model.set_weights(self.first)
        self.model.optimizer.learning_rate = 0.02
        return self.model

    def fit(self, model, callbacks, epochs=3, world=None, batch_size=BATCH, cost=None, **options):
        even = {} if cost is None else {"cost": cost, "bucketing": 0.0}
        data = shard(self.x, self.y, batch_size=batch_size, world=world or self.world, **even)
        options = {"epochs": epochs, "verbose": 0, "shuffle": False, **options}
        return model.fit(data, callbacks=callbacks, **options).history

    def outcome(self, model, logs, **more):
        """Whether the ranks have one model and one history."""
        floats = (weight for weight in model.get_weights() if weight.dtype.kind == "f")
        models = self.world.allgather_values(b"".join(weight.tobytes() for weight in floats))
        histories = self.world.allgather_values(json.dumps(logs))
        return {"models": len(set(models)), "histories": len(set(histories)), "logs": logs, **more}

    def gradients(self):
        """Two ranks with a batch, against one with twice as many, which just trains."""
        self.alone = build()
        self.fit(self.alone, [KeepPace(world=SoloWorld())], world=SoloWorld(), batch_size=2 * BATCH)
        model = build(seed=5 + self.world.rank)
        logs = self.fit(model, [KeepPace("bsp")])
        hooked = {"apply"} & set(vars(model.optimizer)) or {"compute_loss"} & set(vars(model))
        apart = np.abs(weights_of(model) - weights_of(self.alone)).max()
        return self.outcome(model, logs, apart=float(apart), hooked=sorted(hooked))

    def costs(self):
        """The same, with other samples on each rank: equal costs, not equal counts."""
        cost = np.random.default_rng(2).lognormal(3, 0.7, SAMPLES)
        model = build(seed=5 + self.world.rank)
        logs = self.fit(model, [KeepPace("bsp")], cost=cost)
        apart = np.abs(weights_of(model) - weights_of(self.alone)).max()
        counts = [len(batch[0]) for batch in shard(self.x, batch_size=BATCH, cost=cost)]
        return self.outcome(model, logs, apart=float(apart), counts=len(set(counts)))

    def wrapper(self):
        """The optimizer that averages; the last step, of uneven batches, is left out."""
        model = build(averaged(keras.optimizers.SGD(0.05, momentum=0.9)), seed=self.world.rank)
        alone = build()
        if self.world.rank == 0:
            model.set_weights([weight.copy() for weight in alone.get_weights()])
        start_equal(model)
        self.fit(model, [], epochs=1, steps_per_epoch=4)
        options = {"world": SoloWorld(), "batch_size": 2 * BATCH, "steps_per_epoch": 4}
        self.fit(alone, [], epochs=1, **options)
        apart = np.abs(weights_of(model) - weights_of(alone)).max()
        return self.outcome(model, {}, apart=float(apart))

    def rule(self, rule):
        """What a callback sees at an epoch's end is the same on all ranks; so is the result."""
        model, seen = self.anew(), []
        look = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(self.outcome(model, {})["models"])
        )
        options = {"epochs": 4, "validation_data": self.validation}
        return self.outcome(model, self.fit(model, [KeepPace(**rule), look], **options), seen=seen)

    def uneven(self, model, rule):
        """Rank 0 has two batches, rank 1 four."""
        samples = (2 + 2 * self.world.rank) * BATCH
        data = {"x": self.x[:samples], "y": self.y[:samples], "batch_size": BATCH}
        keep = KeepPace(rule)
        return self.outcome(model, model.fit(**data, epochs=2, verbose=0, callbacks=[keep]).history)

    def all_rejected(self, model):
        """The second batch of both ranks is not finite: nobody has a gradient for that step."""
        x = self.x[: 4 * BATCH].copy()
        x[BATCH : 2 * BATCH] = np.nan
        data = {"x": x, "y": self.y[: len(x)], "batch_size": BATCH, "shuffle": False}
        model.fit(**data, verbose=0, callbacks=[KeepPace("bsp")])
        return self.outcome(model, {}, finite=bool(np.isfinite(weights_of(model)).all()))

    def classes(self):
        """A metric that is a figure for each class, of other samples on each rank."""
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        score = keras.metrics.F1Score(threshold=0.5, name="f1")
        model.compile("sgd", "mse", metrics=[score], jit_compile=False)
        own = self.x[self.world.rank :: 2]
        data = {"x": own, "y": (own[:, :3] > 0).astype("float32")}
        logs = model.fit(**data, verbose=0, callbacks=[KeepPace("average")]).history
        return self.outcome(model, {"f1": np.asarray(logs["f1"]).tolist()})

    def led_weights(self):
        """A callback that runs on rank 0 alone changes weights while the training goes on."""
        model = self.anew()
        change = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: model.set_weights(self.first)
        )
        try:
            logs = self.fit(model, [KeepPace("average", callbacks=[change])])
        except TrainingError as error:
            start_equal(model)
            return self.outcome(model, {}, error=str(error))
        return self.outcome(model, logs, error="")

    def mistakes(self):
        """What is said of arrays that nobody has sharded, and of a KeepPace that is not first."""
        said = []

        class Listen(logging.Handler):
            def emit(self, record):
                said.append(record.getMessage())

        listen, log = Listen(), logging.getLogger("paceline.keras")
        log.addHandler(listen)
        model, first = self.anew(), keras.callbacks.TerminateOnNaN()
        options = {"epochs": 1, "verbose": 0, "batch_size": BATCH}
        model.fit(self.x, self.y, callbacks=[first, KeepPace("average")], **options)
        wrong = len(said)
        part = slice(self.world.rank, 64, 2)
        model.fit(self.x[part], self.y[part], callbacks=[KeepPace("average")], **options)
        self.fit(model, [KeepPace("average")], epochs=1)
        log.removeHandler(listen)
        return self.outcome(model, {}, said=said, wrong=wrong)

    def stop(self, model, rule, callback):
        """Only rank 1 has a callback that stops the training."""
        own = [callback] if self.world.rank == 1 else []
        return self.outcome(model, self.fit(model, [KeepPace(rule), *own], epochs=6))

    def own_loop(self):
        """keep_pace around steps of the optimizer that nobody compiles; how far they went."""
        model = build(keras.optimizers.SGD(0.1), seed=self.world.rank)
        with keep_pace(model, model.optimizer, "bsp") as pace:
            first = weights_of(model).copy()
            variables = model.trainable_variables
            for _ in range(3):
                slope = 1.0 + self.world.rank
                gradients = [keras.ops.full(variable.shape, slope) for variable in variables]
                model.optimizer.apply(gradients, variables)
            pace.check()
        went = first - weights_of(model)
        return self.outcome(model, {}, went=[float(went.min()), float(went.max())])

    def leading(self):
        """Callbacks inside of KeepPace: once, on rank 0, and all ranks do what they ask for."""
        model, calls, rank, kinds = self.anew(), [], self.world.rank, keras.callbacks
        never = {"monitor": "val_loss", "min_delta": 1e9}  # better by so much
        led = [
            kinds.EarlyStopping(patience=2, restore_best_weights=True, **never),
            kinds.ReduceLROnPlateau(factor=0.5, patience=1, **never),
            kinds.ModelCheckpoint(self.folder / f"{rank}.weights.h5", save_weights_only=True),
            kinds.CSVLogger(self.folder / f"{rank}.csv"),
            kinds.LambdaCallback(on_epoch_begin=lambda epoch, logs: calls.append(epoch)),
        ]
        keep = KeepPace("average", every=4, callbacks=led)
        logs = self.fit(model, [keep], epochs=9, validation_data=self.validation)
        rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
        return self.outcome(
            model,
            logs,
            calls=self.world.allgather_values(len(calls)),
            rates=self.world.allgather_values(round(rate, 6)),
            files=sorted(path.name for path in self.folder.iterdir()),
            restored=model.evaluate(*self.validation, verbose=0, return_dict=True)["loss"],
        )


class StopInBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.stop_training = True


class ExitInBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            sys.exit(0)


def build(optimizer=None, norm=False, seed=5):
    seed_generators(seed)
    layers = [keras.Input((6,)), keras.layers.Dense(16, activation="tanh")]
    if norm:
        layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    optimizer = optimizer or keras.optimizers.SGD(0.05, momentum=0.0 if norm else 0.9)
    jit = keras.backend.backend() == "jax"  # TensorFlow cannot call Python from compiled code
    model.compile(optimizer, "mse", jit_compile=jit)
    return model


def weights_of(model):
    return np.concatenate([weight.reshape(-1) for weight in model.get_weights()])


def try_some(cases):
    """One rule about gradients, one about weights, and what callbacks ask for."""
    found = {"bsp": cases.gradients(), "average": cases.rule(RULES["average"])}
    return found | {"leading": cases.leading(), "mistakes": cases.mistakes()}


def try_the_rest(cases):
    found = {"wrapper": cases.wrapper(), "costs": cases.costs()}
    found |= {name: cases.rule(rule) for name, rule in RULES.items() if name != "average"}
    found["uneven average"] = cases.uneven(cases.anew(), "average")
    found["uneven bsp"] = cases.uneven(cases.alone, "bsp")
    found["stop in a batch"] = cases.stop(cases.alone, "bsp", StopInBatch())
    early = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1e9)
    found["stop at an epoch's end"] = cases.stop(cases.anew(), "average", early)
    found["all rejected"] = cases.all_rejected(cases.alone)
    found["classes"] = cases.classes()
    found["own loop"] = cases.own_loop()
    return found | {"led weights": cases.led_weights()}


def main(folder, what="all"):
    warnings.simplefilter("ignore")
    world = init()
    cases = Cases(world, folder)
    if what == "exit":
        cases.stop(build(), "bsp", ExitInBatch())
    found = try_some(cases)
    if what == "all":
        found |= try_the_rest(cases)
    if world.rank == 0:
        print("OUTCOME", json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

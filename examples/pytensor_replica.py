"""A framework without built-in support: PyTensor, the successor of Theano.

paceline run -n 2 -- examples/pytensor_replica.py

The class is all you need; see docs/your-framework.md. Needs: pip install pytensor
"""

import numpy as np
import pytensor
import pytensor.tensor as pt

import paceline
from paceline.data import digits
from paceline.frameworks.numpy import NumpyReplica


class PyTensorReplica(NumpyReplica):
    """Shared variables of PyTensor, trained by SGD with momentum on the gradient of `loss`."""

    def __init__(self, shared, inputs, targets, loss, scores=None, lr=0.01, momentum=0.0):
        self.shared = shared
        mode = "FAST_COMPILE"  # needs no C++ compiler; omit it for long runs
        gradients = pytensor.grad(loss, shared)
        compute = pytensor.function([inputs, targets], [loss, *gradients], mode=mode)
        names = [variable.name for variable in shared]

        def loss_and_gradients(arrays, batch):
            found, *gradients = compute(batch.inputs, batch.targets)
            return float(found), dict(zip(names, gradients, strict=True))

        count_correct = None
        if scores is not None:
            classify = pytensor.function([inputs], scores.argmax(axis=1), mode=mode)

            def count_correct(arrays, batch):
                return int((classify(batch.inputs) == batch.targets).sum())

        arrays = {variable.name: variable.get_value() for variable in shared}
        super().__init__(arrays, loss_and_gradients, lr, momentum, count_correct)

    def rehome(self, parameters, gradients):
        """Let the shared variables live in the flat vector, so that nothing is ever copied."""
        super().rehome(parameters, gradients)
        for variable in self.shared:
            variable.set_value(self.arrays[variable.name], borrow=True)


def build():
    rng = np.random.default_rng(1)

    def weights(name, *shape):
        values = rng.normal(size=shape) * shape[0] ** -0.5 if len(shape) > 1 else np.zeros(shape)
        return pytensor.shared(values.astype(np.float32), name)

    first, first_bias = weights("first", 784, 128), weights("first_bias", 128)
    second, second_bias = weights("second", 128, 10), weights("second_bias", 10)
    images, labels = pt.ftensor4("images"), pt.lvector("labels")
    hidden = pt.maximum(images.reshape((-1, 784)) @ first + first_bias, 0)
    scores = pt.special.log_softmax(hidden @ second + second_bias, axis=1)
    loss = -scores[pt.arange(labels.shape[0]), labels].mean()
    shared = [first, first_bias, second, second_bias]
    return PyTensorReplica(shared, images, labels, loss, scores, lr=0.02, momentum=0.9)


if __name__ == "__main__":
    train, validation = digits.load("train"), digits.load("validation")
    result = paceline.Trainer(
        build, train, validation, rule="bsp", epochs=5, data={"batch_size": 32}
    ).fit()
    if paceline.init().rank == 0:
        print(f"val accuracy {result.summary['val_accuracy']:.4f}")

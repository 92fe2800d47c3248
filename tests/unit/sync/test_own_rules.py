"""Rules of a user: trained, checkpointed, resumed and exported as ours are."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.line_problem import build, data, fit, own_loop, weights

import paceline
from paceline.comm import run_world
from paceline.errors import ConfigError, Interrupted
from paceline.frameworks.model_files import read_model
from paceline.rules import BSP, GradientRule, Vector, make_rule
from paceline.training.resume.export import export_model
from paceline.training.trainer import Trainer

EXAMPLES = Path(__file__).parents[3] / "examples"
SLOWMO, DAMPED = (f"{EXAMPLES}/own_rules.py:{name}" for name in ("SlowMo", "DampedPush"))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_slowmo_without_momentum_is_averaging(tmp_path, ranks):
    own = fit(tmp_path, ranks, {"name": SLOWMO, "every": 3, "beta": 0.0}).model
    average = fit(tmp_path, ranks, {"name": "average", "every": 3}).model
    assert weights(own) == pytest.approx(weights(average), rel=1e-4, abs=1e-6)
    slow = fit(tmp_path, ranks, {"name": SLOWMO, "every": 3}).model
    assert weights(slow).tobytes() != weights(own).tobytes()


@pytest.mark.parametrize(
    ("exchange", "ranks"),
    [({}, 3), ({"servers": 1}, 3), ({"servers": 1, "overlap": True}, 3), ({"overlap": True}, 2)],
)
def test_an_asynchronous_rule_learns_wherever_its_centre_lies(tmp_path, exchange, ranks):
    result = fit(
        tmp_path, ranks, {"name": DAMPED, "every": 2}, epochs=20, momentum=0.0, exchange=exchange
    )
    losses = [record.train_loss for record in result.history]
    assert losses[-1] < 0.2 * losses[0]


def test_a_users_loop_takes_an_instance():
    rule = make_rule({"name": SLOWMO, "every": 2})
    assert own_loop(rule, 2).tobytes() != own_loop("bsp", 2).tobytes()


@pytest.mark.parametrize("name", [SLOWMO, DAMPED])
def test_a_run_is_resumed_and_exported(tmp_path, name):
    """A synchronous one ends with the same bits as one that was never interrupted."""

    class Interrupting(paceline.Callback):
        def on_batch_end(self, trainer, step, logs):
            if step == 3:
                trainer.interrupt()

    def run(folder, callbacks=()):
        def program(world):
            return Trainer(
                build, data(), world=world, rule={"name": name, "every": 2}, epochs=2, loss="mse",
                progress="off", data={"batch_size": 6}, run_dir=str(tmp_path / folder),
                resume="auto", callbacks=list(callbacks),
            ).fit()  # fmt: skip

        return run_world(2, program)[0]

    whole = run("whole")
    with pytest.raises(Interrupted):
        run("parts", [Interrupting()])
    written = (tmp_path / "parts" / "config.yaml").read_text()
    assert f"name: {name}" in written
    export_model(tmp_path / "parts", tmp_path / "early.npz", None, False, print)
    with np.load(tmp_path / "early.npz") as early:
        assert all(np.isfinite(early[key]).all() for key in early.files)
    resumed = run("parts")
    assert resumed.summary["rule"] == name.rpartition(":")[2]
    if name == SLOWMO:
        assert weights(resumed.model).tobytes() == weights(whole.model).tobytes()
    export_model(tmp_path / "parts", tmp_path / "model.safetensors", None, False, print)
    assert read_model(tmp_path / "model.safetensors").values == 4


def test_exporting_a_checkpoint_runs_no_code_that_it_names(tmp_path):
    """A run directory may come from elsewhere, with a file beside it."""
    path, ran = tmp_path / "rule_of_a_stranger.py", tmp_path / "ran"
    path.write_text((EXAMPLES / "own_rules.py").read_text())
    rule = make_rule({"name": f"{path}:SlowMo", "every": 2})  # once: ranks are threads here

    class Interrupting(paceline.Callback):
        def on_batch_end(self, trainer, step, logs):
            if step == 5:
                trainer.interrupt()

    centres = []

    def program(world):
        trainer = Trainer(
            build, data(), world=world, rule=rule, epochs=2,
            loss="mse", progress="off", data={"batch_size": 6}, run_dir=str(tmp_path / "run"),
            callbacks=[Interrupting()],
        )  # fmt: skip
        with pytest.raises(Interrupted):
            trainer.fit()
        centres.append(trainer._exchange.common_weights().copy())

    run_world(2, program)
    del sys.modules["rule_of_a_stranger"]
    path.write_text(f"import pathlib; pathlib.Path({str(ran)!r}).touch()\n")
    export_model(tmp_path / "run", tmp_path / "model.npz", None, False, print)
    assert not ran.exists()
    with np.load(tmp_path / "model.npz") as exported:
        values = np.concatenate([exported[name].ravel() for name in ("weight", "bias")])
    assert np.isin(values, centres[0]).all()


@dataclass(frozen=True, kw_only=True)
class Doubled(GradientRule):
    """A formula that is wrong on purpose, without a faster way of its own."""

    def contribute(self, gradient: Vector, weight: float, out: Vector) -> None:
        np.multiply(gradient, weight, out=out)

    def merge(self, total: Vector, weight: float, out: Vector) -> None:
        np.multiply(total, 2.0 / weight, out=out)


@pytest.mark.parametrize("share", [True, False])
def test_both_paths_of_gradients_use_the_rules_formulas(tmp_path, share):
    """Twice the gradient is twice the rate."""
    exchange = {"share": share}
    doubled = fit(tmp_path, 2, Doubled(), exchange=exchange, momentum=0.0)
    plain = fit(tmp_path, 2, "bsp", rate=0.04, exchange=exchange, momentum=0.0)
    assert weights(doubled.model) == pytest.approx(weights(plain.model), rel=1e-4)


@pytest.mark.parametrize(
    ("shared", "method"),
    [(True, "accumulate"), (True, "merge"), (False, "contribute"), (False, "merge")],
)
def test_a_formula_of_bsp_that_is_broken_is_seen_on_both_paths(
    tmp_path, monkeypatch, shared, method
):
    """`accumulate` is contribute and add in one; the path of messages adds in the all-reduce."""
    plain = fit(tmp_path, 2, "bsp", exchange={"share": shared})
    original = getattr(BSP, method)

    def broken(self, *arguments, out):
        original(self, *arguments, out=out)
        out *= 1.5

    monkeypatch.setattr(BSP, method, broken)
    wrong = fit(tmp_path, 2, "bsp", exchange={"share": shared})
    assert weights(wrong.model) != pytest.approx(weights(plain.model), rel=1e-3)


def test_what_is_no_rule_is_refused_by_name(tmp_path):
    path = tmp_path / "not_quite_rules.py"  # no other test has a module of this name
    path.write_text(
        "from paceline.rules import WeightRule\n"
        "class Plain(WeightRule):\n    every = 2\n"
        "def function():\n    pass\n"
    )
    with pytest.raises(ConfigError, match=r"rules.py:Plain is no dataclass; decorate it"):
        make_rule(f"{path}:Plain")
    with pytest.raises(ConfigError, match=r"rules.py:function is no rule: derive a class"):
        make_rule(f"{path}:function")

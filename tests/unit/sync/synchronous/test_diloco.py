"""The rule `diloco` in training, against plain torch and against `average`."""

import numpy as np
import pytest
import torch
from support.line_problem import BATCH, SAMPLES, build, data, fit, own_loop, weights
from torch import nn

import paceline
from paceline.data import epoch_order, plan_steps
from paceline.observe import read_events

PLAIN = {"name": "diloco", "outer_lr": 1.0, "outer_momentum": 0.0}


def test_without_outer_momentum_it_is_averaging(tmp_path):
    for every in (1, 4, "epoch"):
        one = fit(tmp_path, 3, PLAIN | {"every": every})
        other = fit(tmp_path, 3, {"name": "average", "every": every})
        assert weights(one.model) == pytest.approx(weights(other.model), abs=1e-6)


def reference(ranks, every, epochs=2):
    """Inner SGD on each worker, an outer torch optimizer on the mean difference."""
    inputs, targets = (torch.from_numpy(array) for array in data())
    centre = build()
    outer = torch.optim.SGD(centre.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    models = [build() for _ in range(ranks)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9) for m in models]
    plan = plan_steps(SAMPLES, ranks, BATCH)
    for epoch in range(epochs):
        order = epoch_order(SAMPLES, 1, epoch)
        samples = np.zeros(ranks)
        for step in range(len(plan)):
            for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                begin, end = plan.bounds(step, rank)
                rows = torch.from_numpy(order[begin:end])
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
                samples[rank] += end - begin
            if (step + 1) % every == 0 or step + 1 == len(plan):
                for parts in zip(
                    centre.parameters(), *(m.parameters() for m in models), strict=True
                ):
                    shares = samples / samples.sum()
                    parts[0].grad = sum(
                        share * (parts[0].detach() - part.detach())
                        for share, part in zip(shares, parts[1:], strict=True)
                    ).float()
                outer.step()
                for model in models:
                    model.load_state_dict(centre.state_dict())
                samples[:] = 0
    return weights(centre)


def test_it_follows_the_paper(tmp_path):
    result = fit(tmp_path, 3, {"name": "diloco", "every": 4})
    assert weights(result.model) == pytest.approx(reference(3, 4), abs=1e-5)


def test_a_users_loop_follows_it_too():
    ours = own_loop(paceline.DiLoCo(every=4), 3)
    assert ours == pytest.approx(reference(3, 4), abs=1e-5)


def test_fragments_send_less_at_a_time_and_keep_the_centre_common(tmp_path):
    """Two fragments: each exchange moves one half; the centre is validated, saved and returned."""

    def sent(result):
        return [e["bytes"] for e in read_events(result.run_dir / "events") if e["bytes"]]

    whole = fit(tmp_path, 2, PLAIN | {"every": 2})
    halves = fit(tmp_path, 2, PLAIN | {"every": 2, "fragments": 2})
    assert len(sent(halves)) == len(sent(whole))
    assert max(sent(halves)) < max(sent(whole))
    assert weights(halves.model).tolist() != weights(whole.model).tolist()


def test_the_centre_is_validated_and_workers_go_on_where_they_were(tmp_path):
    seen = []

    class Look(paceline.Callback):
        def on_validation_end(self, trainer, logs):
            centre = trainer._exchange.common_weights()
            seen.append((trainer.world.rank, logs["val_loss"], centre.copy()))

    settings = {"name": "diloco", "every": 100, "fragments": 3}
    result = fit(tmp_path, 2, settings, validation=data(), callbacks=[Look()], epochs=3)
    inputs, targets = (torch.from_numpy(array) for array in data())
    for _, loss, centre in seen:
        model = build()
        flat = torch.from_numpy(centre)
        with torch.no_grad():
            model.weight.copy_(flat[:3].reshape(1, 3))
            model.bias.copy_(flat[16:17])
            expected = nn.functional.mse_loss(model(inputs), targets).item()
        assert loss == pytest.approx(expected, rel=1e-5)
    assert result.summary["val_loss"] == pytest.approx(seen[-1][1])

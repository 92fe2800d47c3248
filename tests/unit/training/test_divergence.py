"""A run that does not learn says so, and one that does says nothing."""

import json

import pytest
from support.line_problem import fit

from paceline.rules import BSP, EASGD

ABOVE = (1.2, "far above that of the first")
FLAT = (1e-7, "no lower than in the first")  # workers at their own pace begin with any batches


@pytest.mark.parametrize(
    ("rule", "rate", "said"),
    [
        (rule, *case)
        for rule, cases in ((BSP(), (ABOVE, FLAT)), (EASGD(every=2), (ABOVE,)))
        for case in ((0.02, None), *cases)
    ],
)
def test_the_summary_and_the_log_tell(tmp_path, capfd, rule, rate, said):
    result = fit(tmp_path, 2, rule, epochs=6, momentum=0.0, rate=rate)
    warning = json.loads((result.run_dir / "summary.json").read_text())["warning"]
    logged = capfd.readouterr().err
    if said is None:
        assert warning is None
        assert "the loss is" not in logged
    else:
        assert said in warning
        assert said in logged
        assert logged.count("warning: epoch") == 1, "once, not for each epoch"

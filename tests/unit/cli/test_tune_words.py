"""`paceline tune`: what it refuses before a trial."""

import pytest


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--", "bench"), 1, "paceline tune -- train mnist"),
        (("--ranks", "0", "--", "train", "mnist"), 2, "'0' is not a list of numbers of 1 or more"),
        (("--plot", "tune.txt", "--", "train", "mnist"), 2, "must end in one of"),
        (("--json", "file/tune.json", "--", "train", "mnist"), 2, "cannot be written"),
        (("--", "train", "mnist", "--epochs", "many"), 2, "argument --epochs"),
    ],
)
def test_what_cannot_be_tried_is_refused(command, tmp_path, words, code, said):
    (tmp_path / "file").write_text("")
    done = command("tune", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "tune: trial" not in done.stderr

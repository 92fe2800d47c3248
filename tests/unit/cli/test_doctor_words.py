"""`paceline doctor`: wrong words."""

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-n", "0"), "-n is 0, expected 1 or more"),
        (("--hosts", "a:x"), "'a:x' is not a host"),
        (("--in-job",), "--in-job was given, but this is no job"),
    ],
)
def test_wrong_words_are_refused(command, words, said):
    done = command("doctor", *words)
    assert done.returncode != 0
    assert done.stdout == ""
    assert said in done.stderr

"""Unknown names: the message lists what is valid, and stays short however long the name is."""

from paceline.core.suggestions import did_you_mean, nearest, unknown_name, unknown_settings


def test_a_near_name_is_suggested_and_a_far_one_is_not():
    assert nearest("batchsize", ["batch_size", "epochs"]) == "batch_size"
    assert did_you_mean("nonsense", ["batch_size", "epochs"]) == ""


def test_case_does_not_hide_the_name_that_was_meant():
    assert unknown_name("optimizer", "ADM", ["adam"]).endswith("Did you mean 'adam'?")


def test_a_name_of_any_length_is_shown_in_part():
    message = unknown_name("optimizer", "9" * 10**6, ["adam"])
    assert message == f"optimizer is '{'9' * 100}', expected one of: adam"


def test_names_that_are_no_text():
    assert unknown_name("rule", None, ["bsp"]) == "rule is None, expected one of: bsp"
    assert unknown_settings("rule bsp", [3], []) == "rule bsp has no setting 3; it takes none"


def test_all_unknown_settings_are_reported_at_once():
    assert unknown_settings("x", ["a"], ["a", "b"]) is None
    assert unknown_settings("x", ["c", "a", "d"], ["a"]) == "x has no setting c, d; it takes: a"

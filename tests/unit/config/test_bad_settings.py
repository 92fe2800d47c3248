"""Settings of any kind, from any hand: a RunConfig or our own error that names the key."""

import math
import string

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline.config.data import DataConfig
from paceline.config.messages import show
from paceline.config.reading import combine, read_assignment, read_config, read_yaml
from paceline.config.run import RunConfig
from paceline.errors import ConfigError

fuzzed = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

EXPLODING_MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("epochs: 1\nepochs: 2", "the key 'epochs' is given twice"),
        ("data: {shuffle: true, shuffle: false}", "the key 'shuffle' is given twice"),
        ("1: 2", "the key 1 is a int, expected a name"),
        ("data:\n  on: 3", "the key True is a bool"),
        ("? 2001-01-01\n: 3", "expected a name"),
        ("epochs: 2001-13-45", "month must be in 1..12"),
        ("epochs: !!int x", "not valid YAML"),
        ("epochs: !!timestamp x", "not valid YAML"),
        ("epochs: !!bool x", "not valid YAML"),
        ("epochs: " + "9" * 5000, "4300 digits"),
        ("model: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("model: !!python/name:os.system", "could not determine a constructor"),
        ("\tepochs: 1", "cannot start any token"),
        ("epochs: \x07", "special characters are not allowed"),
        ("epochs: \0", "special characters are not allowed"),
        ('run_dir: "a\\0b"', "a character that cannot be written"),
        ('"\\ud800": 1', "a character that cannot be written"),
        ("run_dir: " + "x" * 1_000_000, "longer than 262144 bytes"),
        ("a: &a {b: *a}", "nested too deeply"),
        ("a: " + "{b: " * 40 + "1" + "}" * 40, "nested too deeply"),
        ("- " * 5000, "nested too deeply"),
        (EXPLODING_MERGES, "with its merges it has more than 10000 values"),
        ("a: &a {b: 1}\nc: {<<: [" + "*a," * 17 + "]}", "<< merges 17 sections"),
        ("a: 1\n---\nb: 2", "single document"),
    ],
)
@pytest.mark.timeout(20)
def test_run_files_that_are_refused(tmp_path, content, said):
    file = tmp_path / "run.yaml"
    file.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    message = str(caught.value)
    assert said in message
    assert str(file) in message
    assert "\n" not in message
    assert len(message) < 1500


def test_run_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"epochs: \xff\xfe")
    with pytest.raises(ConfigError, match=r"run\.yaml cannot be read: 'utf-8'"):
        read_yaml(tmp_path / "run.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.yaml cannot be read"):
        read_yaml(tmp_path / "folder.yaml")


def test_merges_of_a_moderate_kind_work(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("stop: &s {patience: 3}\nschedule: {<<: *s, patience: 4, name: step}\n")
    assert read_yaml(file)["schedule"] == {"patience": 4, "name": "step"}


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, "nan", "inf", pytest.param(10**400, id="400 digits")],
)
@pytest.mark.parametrize(
    "key",
    [
        "optimizer.lr",
        "optimizer.momentum",
        "optimizer.weight_decay",
        "clip_norm",
        "schedule.warmup",
        "seed",
        "epochs",
        "data.batch_size",
        "stop.patience",
    ],
)
def test_numbers_without_end_are_refused_by_name(key, value):
    section, _, name = key.rpartition(".")
    with pytest.raises(ConfigError, match=rf"^{key} is .*, expected: "):
        read_config({section: {name: value}} if section else {name: value})


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ({"rule": {"name": "easgd", "force": math.nan}}, "rule.force is nan"),
        (
            {"rule": {"name": "diloco", "outer_lr": math.inf}},
            "rule.outer_lr is inf, expected: a finite number",
        ),
        ({"optimizer": {"betas": [0.9, math.nan]}}, "optimizer.betas.1 is nan"),
        ({"stop": {"target": "val_loss<1e999"}}, "stop.target is inf"),
        ({"rule": {"name": ["bsp"]}}, "rule is {'name': ['bsp']}"),
        ({"rule": {"name": "bsp", 3: 4}}, "the key 3 in rule is a int"),
        ({3: 4}, "the key 3 is a int, expected a name"),
        ({"a\nb": 1}, "'a\\nb' is not a setting"),
        ({"loss": 3}, "loss is 3, expected: a valid string"),
        ({"epochs": 10**5000}, "epochs is <int>"),
        ({"model": 1, "lerning_rate": 2}, "lerning_rate is not a setting"),
    ],
)
def test_odd_settings_are_refused_by_name(level, said):
    with pytest.raises(ConfigError) as caught:
        read_config(level)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_long_values_are_cut_in_messages():
    long = "x" * 10**6
    for level in ({"epochs": long}, {long: 1}, {"rule": {"name": long}}):
        with pytest.raises(ConfigError) as caught:
            read_config(level)
        assert len(str(caught.value)) < 1500
    with pytest.raises(ConfigError) as caught:
        read_assignment(long)
    assert len(str(caught.value)) < 1500
    assert show(10**5000) == "<int>"


def test_data_with_numbers_of_its_own_is_left_alone():
    samples = [(math.nan, 10**400)]
    assert read_config({"data": {"train": samples}}).data.train is samples


KEYS = st.sampled_from([*RunConfig.model_fields, *DataConfig.model_fields, "lr", "name", "every"])
NAMES = st.sampled_from(["bsp", "easgd", "diloco", "sgd", "step", "cosine", "mnist", "digits"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**600), 10**600)
    | st.floats()
    | st.text(max_size=10)
    | st.binary(max_size=5)
    | st.dates()
    | NAMES
)
ODD_KEYS = KEYS | st.text(max_size=8) | st.integers() | st.none() | st.booleans() | st.dates()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(ODD_KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=8,
)


@fuzzed
@given(levels=st.lists(st.dictionaries(ODD_KEYS, VALUES, max_size=4), max_size=3))
@example(levels=[{"rule": {"name": []}}])
@example(levels=[{"\n": {0: None}}])
@example(levels=[{"schedule": {"name": {}}}, {"schedule": {"name": []}}])
@pytest.mark.timeout(120)
def test_any_settings_make_a_config_or_our_error(levels):
    for level in levels:
        try:
            assert isinstance(read_config(combine(level)), RunConfig)
        except ConfigError as error:
            check_message(str(error), level)
    try:
        assert yaml.safe_dump(read_config(*levels).describe())
    except ConfigError as error:
        check_message(str(error), {key: 1 for level in levels for key in level})


def check_message(message, level):
    """It is one line and names one of the keys given."""
    assert "\n" not in message
    assert any(str(key).split(".")[0] in message or repr(key) in message for key in level), message


FRAGMENTS = st.sampled_from(
    [
        *("a: ", "- ", "? ", ": ", "\n", "\n  ", "{", "}", "[", "]", ",", "&a ", "*a", "<<: *a"),
        *("!!binary ", "!!set ", "!!omap ", "!!int ", "!!float ", "!!python/name:os.system "),
        *(
            "|\n",
            ">\n",
            "'",
            '"',
            "\\x00",
            "#",
            "%YAML 1.1\n",
            "---\n",
            "...\n",
            "\t",
            "\0",
            "\x85",
        ),
        *("epochs: ", "optimizer: ", "rule: ", "0x1F", "1e400", ".nan", "-.inf", "2001-01-01"),
        *("1:2:3", "~", "yes", "=", "\ud800", "\ufeff", "2001-01-01 99:99:99", "0o7", "0b2"),
        *("1_", "\x85"),
    ]
)
TEXTS = st.lists(FRAGMENTS | st.text(string.printable, max_size=4), max_size=12).map("".join)


@fuzzed
@given(content=TEXTS.map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=40))
@pytest.mark.timeout(120)
def test_any_run_file_makes_a_config_or_our_error(tmp_path, content):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    said = ""
    try:
        assert isinstance(read_config(read_yaml(file)), RunConfig)
    except ConfigError as error:
        said = str(error)
    assert "\n" not in said


@fuzzed
@given(key=st.text(max_size=6) | KEYS, value=TEXTS | st.text(max_size=20))
@pytest.mark.timeout(120)
def test_any_assignment_makes_settings_or_our_error(key, value):
    text = f"{key}={value}"
    said = "--set"
    try:
        assert isinstance(read_assignment(text), dict)
    except ConfigError as error:
        said = str(error)
    assert said.startswith("--set")
    assert "\n" not in said

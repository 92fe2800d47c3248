"""Functions named by text."""

import sys
import textwrap

import pytest

from paceline.comm import SoloWorld
from paceline.config.reading import read_config
from paceline.core.user_code import load_function
from paceline.data import open_data
from paceline.errors import ConfigError, PacelineError
from paceline.training.build import build_replica


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Forget afterwards what the test has imported, and work in an empty directory."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def test_a_file_is_loaded_once_and_sees_its_siblings(tmp_path):
    write(tmp_path / "lab" / "sibling_of_net.py", "WIDTH = 7\n")
    path = write(
        tmp_path / "lab" / "net_of_test.py",
        """
        from sibling_of_net import WIDTH
        loads = []
        def build():
            loads.append(WIDTH)
            return loads
        """,
    )
    assert load_function(f"{path}:build")() == [7]
    assert load_function("lab/net_of_test.py:build")() == [7, 7]
    assert load_function(f"{path}:build").__module__ == "net_of_test"
    assert sys.modules["net_of_test"].__file__ == str(path.resolve())


def test_a_module_is_found_in_the_current_directory(tmp_path):
    write(tmp_path / "pack_of_test" / "__init__.py", "")
    write(tmp_path / "pack_of_test" / "deep.py", "def build():\n    return 5\n")
    assert load_function("pack_of_test.deep:build")() == 5


@pytest.mark.parametrize(
    "spec",
    [
        *("build", ":build", "net.py:", ":", "", "trap", "trap.py", "trap:", "trap:3", "trap:a.b"),
        *("trap://host/data", "trap:/folder/data", "trap:\\data", "trap :build", "./trap:build"),
        *(".trap:build", "trap.:build", "trap;x:build", "trap:build()", "trap:build\n"),
    ],
)
def test_a_text_of_another_form_is_refused_and_imports_nothing(tmp_path, spec):
    write(tmp_path / "trap.py", "raise SystemError('imported')\n")
    before, path = set(sys.modules), list(sys.path)
    with pytest.raises(ConfigError, match=r"names no function; write file\.py:function"):
        load_function(spec)
    assert set(sys.modules) == before
    assert sys.path == path


@pytest.mark.parametrize("spec", ["trap", "trap.py", "trap://host/data", "trap.xyz"])
def test_data_and_models_of_that_name_import_nothing(tmp_path, spec):
    write(tmp_path / "trap.py", "raise SystemError('imported')\n")
    with pytest.raises(PacelineError, match=r"is not a data set|names no function"):
        open_data(spec, part="train")
    with pytest.raises(ConfigError, match=r"names no function|no model|name the function"):
        build_replica(read_config({"model": spec}), SoloWorld())
    assert "trap" not in sys.modules


def test_only_the_file_that_is_named_is_imported(tmp_path):
    write(tmp_path / "bystander_of_test.py", "raise SystemError('imported')\n")
    write(tmp_path / "named_of_test.py", "def build():\n    return 3\n")
    before = set(sys.modules)
    assert load_function("named_of_test.py:build")() == 3
    assert set(sys.modules) - before == {"named_of_test"}


def test_files_that_cannot_be_opened_are_named(tmp_path):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ConfigError, match=r"there is no file folder\.py"):
        load_function("folder.py:build")
    for place in ("x" * 5000 + ".py", "~nobody_of_that_name/net.py", "nul\0.py"):
        with pytest.raises(ConfigError, match=r"cannot be opened|there is no file") as caught:
            load_function(f"{place}:build")
        assert len(str(caught.value)) < 6000
    write(tmp_path / "net.txt", "def build(): pass\n")
    with pytest.raises(
        ConfigError, match=r"net\.txt is not a Python file; give it the suffix \.py"
    ):
        load_function("net.txt:build")


def test_a_directory_that_is_gone_is_an_error_of_ours(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for spec in ("net_of_test:build", "net_of_test.py:build"):
        with pytest.raises(ConfigError):
            load_function(spec)


def test_a_missing_file_and_a_missing_module_are_named():
    with pytest.raises(ConfigError, match=r"there is no file gone\.py"):
        load_function("gone.py:build")
    with pytest.raises(ConfigError, match="there is no module 'gone_for_good'"):
        load_function("gone_for_good.net:build")


def test_a_missing_function_lists_those_that_are_there(tmp_path):
    write(
        tmp_path / "nets_of_test.py",
        """
        from pathlib import Path
        SIZE = 3
        def small(): pass
        def _own(): pass
        class Large: pass
        """,
    )
    with pytest.raises(ConfigError, match=r"no function 'smal'; it has: small, Large$"):
        load_function("nets_of_test.py:smal")
    with pytest.raises(ConfigError, match="SIZE is a int, expected a function"):
        load_function("nets_of_test.py:SIZE")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("x = 1\nraise RuntimeError('out of\\nluck')\n", r"RuntimeError: out of luck \(line 2\)"),
        ("def build(:\n", "SyntaxError: .*line 1"),
        (
            "import no_such_thing_here\n",
            "ModuleNotFoundError: No module named 'no_such_thing_here'",
        ),
        ("import sys\nsys.exit(0)\n", r"SystemExit: 0 \(line 2\)"),
        ("x = '\x00'\n", "(SyntaxError|ValueError): .*null bytes"),
        ("x = " + "(" * 500 + ")" * 500 + "\n", "SyntaxError: too many nested parentheses"),
        ("def f(): f()\nf()\n", "RecursionError: maximum recursion depth exceeded"),
        (
            "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd\n",
            r"imported: Odd \(line 3\)",
        ),
        ("raise ValueError('x' * 10**6)\n", r"ValueError: x{400,500}\.\.\. \(line 1\)"),
        ("import sys\ndel sys.modules[__name__]\n1 / 0\n", r"ZeroDivisionError: .*\(line 3\)"),
    ],
)
def test_what_fails_on_import_is_named_and_forgotten(tmp_path, text, cause):
    write(tmp_path / "bad_of_test.py", text)
    for spec in ("bad_of_test.py:build", "bad_of_test:build"):
        with pytest.raises(ConfigError, match=cause) as caught:
            load_function(spec)
        assert "\n" not in str(caught.value)
        assert "bad_of_test" not in sys.modules
    write(tmp_path / "bad_of_test.py", "def build():\n    return 'mended'\n")
    assert load_function("bad_of_test.py:build")() == "mended"


def test_a_name_that_is_taken_is_refused(tmp_path):
    write(tmp_path / "json.py", "def build(): pass\n")
    with pytest.raises(
        ConfigError, match=r"module 'json', but that name is taken.*rename the file"
    ):
        load_function("json.py:build")


def test_a_module_that_fails_to_give_its_function_is_named(tmp_path):
    write(tmp_path / "moody_of_test.py", "def __getattr__(name):\n    raise OSError('moody')\n")
    with pytest.raises(
        ConfigError, match=r"moody_of_test\.py:build cannot be loaded: OSError: moody"
    ):
        load_function("moody_of_test.py:build")

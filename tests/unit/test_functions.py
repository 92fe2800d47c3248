"""Functions named by text."""

import sys
import textwrap

import pytest

from paceline.errors import ConfigError
from paceline.functions import load_function


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


@pytest.mark.parametrize("spec", ["build", ":build", "net.py:", ":"])
def test_a_text_that_names_no_function_is_refused(spec):
    with pytest.raises(ConfigError, match=r"names no function; write file\.py:function"):
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

"""Where torch.compile keeps what it compiles: code that is run again."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.strangers import give_away, needs_root

from paceline.runtime import compile_cache
from paceline.runtime.compile_cache import VARIABLE, make_private


@pytest.fixture
def env(tmp_path, monkeypatch) -> dict[str, str]:
    monkeypatch.setattr(compile_cache.tempfile, "tempdir", str(tmp_path))
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def torch_module():
    """What the module of torch that knows the place has."""
    return SimpleNamespace(default_cache_dir=lambda: "/tmp/torchinductor_me")


def test_the_cache_lies_in_the_users_own_and_only_they_can_write_to_it(env, torch_module, tmp_path):
    make_private(torch_module, env)
    folder = Path(env[VARIABLE])
    assert folder.is_relative_to(tmp_path / "home" / ".cache" / "paceline")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert torch_module.default_cache_dir() == str(folder)
    make_private(torch_module, env)
    assert env[VARIABLE] == str(folder)


def test_the_users_choice_stays_and_is_for_all_of_it(env, torch_module, tmp_path):
    env[VARIABLE] = str(tmp_path / "mine")
    make_private(torch_module, env)
    make_private(torch_module, env)  # as the other module has it
    assert env[VARIABLE] == torch_module.default_cache_dir() == str(tmp_path / "mine")
    assert not (tmp_path / "home").exists()


def test_what_torch_has_chosen_before_is_no_choice_of_the_users(env, torch_module, tmp_path):
    env[VARIABLE] = torch_module.default_cache_dir()
    make_private(torch_module, env)
    assert Path(env[VARIABLE]).is_relative_to(tmp_path / "home")


def test_another_place_for_caches_is_heeded(env, torch_module, tmp_path):
    env["XDG_CACHE_HOME"] = str(tmp_path / "scratch")
    make_private(torch_module, env)
    assert Path(env[VARIABLE]).is_relative_to(tmp_path / "scratch" / "paceline")


def check_temporary(env: dict[str, str], tmp_path: Path) -> None:
    folder = Path(env[VARIABLE])
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.geteuid()


def test_without_a_home_it_is_a_temporary_folder(env, torch_module, tmp_path):
    (tmp_path / "home").touch()
    make_private(torch_module, env)
    check_temporary(env, tmp_path)


@needs_root
def test_a_folder_of_another_user_is_not_used(env, torch_module, tmp_path):
    before = dict(env)
    make_private(SimpleNamespace(default_cache_dir=torch_module.default_cache_dir), before)
    give_away(Path(before[VARIABLE]))
    make_private(torch_module, env)
    check_temporary(env, tmp_path)

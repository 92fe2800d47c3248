"""A rank of torch, where somebody else has taken the name of torch's own cache."""

import getpass
from pathlib import Path

SCRIPT = """
import os, torch
weights = torch.nn.Parameter(torch.ones(2))
torch.optim.SGD([weights], lr=0.1).step()
from torch._inductor import codecache
print("headers:", codecache._HEADER_DIR)
print("cache:", codecache.cache_dir())
"""


def test_nothing_of_torch_is_read_from_the_shared_temporary_directory(paceline, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    shared, home = tmp_path / "shared", tmp_path / "home"
    shared.mkdir()
    (shared / f"torchinductor_{getpass.getuser()}").touch()  # a file, and not a folder
    home.mkdir()
    words = ("run", "-n", "1", "--", "script.py")
    done = paceline(*words, TMPDIR=str(shared), HOME=str(home), XDG_CACHE_HOME="")
    assert (done.returncode, done.stderr) == (0, "")
    places = [Path(line.split(": ")[1]) for line in done.stdout.splitlines()]
    assert len(places) == 2
    assert all(place.is_relative_to(home / ".cache" / "paceline") for place in places)

"""Nothing in Paceline runs what a file, a message or a shell brings, but where it is listed."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import paceline

SOURCE = Path(paceline.__file__).parent

ALLOWED = {
    ("__init__.py", "import_module"): "public names, from a table in the same file",
    ("cli/__init__.py", "import_module"): "subcommands, from a table in the same file",
    ("frameworks/registry.py", "import_module"): "adapters, from a table in the same file",
    ("data/collate.py", "import_module"): "torch.utils.data, if the samples come from torch",
    ("data/padding.py", "import_module"): "torch, for tensors, Pack and Nest",
    ("data/formats/tables.py", "import_module"): "pyarrow's csv and parquet, named in data/",
    ("tools/bench/rows.py", "import_module"): "matplotlib, if it is asked for",
    (
        "core/user_code.py",
        "import_module",
    ): "the module that the user names as package.module:function",
    (
        "core/user_code.py",
        "spec_from_file_location",
    ): "the file that the user names as file.py:function",
    ("core/user_code.py", "exec_module"): "the file that the user names as file.py:function",
    ("cli/run.py", "run_path"): "the script that the user names: paceline run -- script.py",
    ("cli/run.py", "run_module"): "the module that the user names: paceline run -- -m package",
    (
        "tools/bench/ranks/naive_server.py",
        "comm.recv",
    ): "a benchmark of what pickled messages cost, within one job",
    ("tools/doctor/reach.py", "create_server"): "doctor tries whether hosts reach each other, "
    "for some seconds; nothing is read",
    ("runtime/torchrun/address.py", "bind"): "holds a port for rank 0's store",
    ("runtime/torchrun/hook.py", "listen"): "that store, at loopback, if all ranks are on one node",
    ("tools/bench/hosts.py", "listen"): "a process of ours that waits for commands; no socket",
    ("torch_backend/rendezvous.py", "create_server"): "the store that ranks of torch.distributed "
    "meet at; on one node it listens to the node alone",
    ("torch_backend/rendezvous.py", "TCPStore"): "the same",
    ("tools/bench/ranks/peers.py", "TCPStore"): "gloo as a peer, for the time of a benchmark",
}
"""Where and what, and why it may be there."""

MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FUNCTIONS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    *("import_module", "spec_from_file_location", "exec_module", "run_path", "run_module"),
    *("bind", "listen", "create_server", "start_server", "HTTPServer", "TCPServer", "TCPStore"),
    *("bcast", "allgather"),
}
"""Under any name before the dot; mpi4py's in small letters pickle."""
DOTTED = {
    *("os.system", "os.popen", "tempfile.mktemp", "torch.hub.load", "pd.read_pickle"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.full_load_all"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "comm.recv", "self._comm.recv"),
}
LOADERS = {"yaml.Loader", "yaml.UnsafeLoader", "yaml.FullLoader", "yaml.CLoader"}
DEMANDS = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
    "read_array": ("allow_pickle", False),
    "npy_format.read_array": ("allow_pickle", False),
}
"""Calls that must say this, whatever the default is in the version installed."""
FIXED = {"shell": False, "allow_pickle": False, "weights_only": True}
"""Arguments that no call may set otherwise."""
NAMES = {*DOTTED, *DEMANDS}


def unsafe(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What is unsafe, and in which line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            found = list(_imported(node))
        elif isinstance(node, ast.Call):
            found = list(_called(node))
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in LOADERS:
            found = [ast.unparse(node)]
        else:
            continue
        yield from ((what, node.lineno) for what in found)


def _imported(node: ast.ImportFrom) -> Iterator[str]:
    module = node.module or ""
    if module.split(".")[0] in MODULES:
        yield module
    for alias in node.names:  # under a bare name the calls would not be recognised
        if f"{module}.{alias.name}" in NAMES | LOADERS or f"{module}.{alias.name}" == "os.*":
            yield f"{module}.{alias.name}"


def _called(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    last = name.rpartition(".")[2]
    if name in FUNCTIONS or name in DOTTED:
        yield name
    elif last in METHODS:
        yield last
    given = {argument.arg: argument.value for argument in node.keywords}
    if name in DEMANDS:
        key, value = DEMANDS[name]
        if not _is(given.get(key), value):
            yield f"{name} without {key}={value}"
    for key, value in FIXED.items():
        if key in given and not _is(given[key], value):
            yield f"{key}={ast.unparse(given[key])}"


def _is(node: ast.AST | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@cache
def everything() -> list[tuple[str, str, int]]:
    """File, what and line of all that is unsafe in Paceline."""
    return [
        (path.relative_to(SOURCE).as_posix(), what, line)
        for path in sorted(SOURCE.rglob("*.py"))
        for what, line in unsafe(ast.parse(path.read_text(encoding="utf-8")))
    ]


def test_there_is_nothing_unsafe_but_what_is_listed():
    found = [
        f"{file}:{line}: {what}" for file, what, line in everything() if (file, what) not in ALLOWED
    ]
    assert found == []


def test_the_list_holds_nothing_that_is_gone():
    assert {(file, what) for file, what, _ in everything()} >= set(ALLOWED)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import pickle", "pickle"),
        ("import dill.source", "dill.source"),
        ("from pickle import loads", "pickle"),
        ("from os import system", "os.system"),
        ("from os import *", "os.*"),
        ("from torch import load", "torch.load"),
        ("eval('1')", "eval"),
        ("exec(text)", "exec"),
        ("__import__('os')", "__import__"),
        ("os.system('ls')", "os.system"),
        ("subprocess.run(line, shell=True)", "shell=True"),
        ("subprocess.run(line, shell=wanted)", "shell=wanted"),
        ("tempfile.mktemp()", "tempfile.mktemp"),
        ("yaml.load(text, Loader=yaml.SafeLoader)", "yaml.load"),
        ("class L(yaml.Loader): pass", "yaml.Loader"),
        ("torch.load(path)", "torch.load without weights_only=True"),
        ("torch.load(path, weights_only=flag)", "torch.load without weights_only=True"),
        ("np.load(path)", "np.load without allow_pickle=False"),
        ("np.lib.format.open_memmap(path, allow_pickle=True)", "allow_pickle=True"),
        ("listener.bind(('', 80))", "bind"),
        ("importlib.import_module(name)", "import_module"),
    ],
)
def test_what_is_unsafe_is_found(code, what):
    assert what in [found for found, _ in unsafe(ast.parse(code))]


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()",
        "re.compile('x')",
        "yaml.safe_load(text)",
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "subprocess.run(['ls'])",
        "json.load(file)",
    ],
)
def test_what_is_safe_is_left_alone(code):
    assert list(unsafe(ast.parse(code))) == []

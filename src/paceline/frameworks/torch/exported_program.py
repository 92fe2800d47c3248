"""Run the graph of a `.pt2` file (torch.export) without running any code in it.

torch.export.load unpickles parts of such files, evaluates expressions in them and calls any Python
function that they name. Here the graph is read as JSON, the weights as bytes, and every node
must name an operator of ATen, or plain arithmetic on sizes.
"""

from __future__ import annotations

import json
import operator
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from paceline.core.user_code import describe_failure
from paceline.errors import ConfigError

_SCHEMA = 8
_REMEDY = "name a function that makes the model instead: file.py:function"
_INTEGERS = {1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64}
_FLOATS = {6: torch.float16, 7: torch.float32, 8: torch.float64, 13: torch.bfloat16}
_DTYPES = _INTEGERS | _FLOATS | {10: torch.complex64, 11: torch.complex128, 12: torch.bool}
_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{f"_operator.{n}": getattr(operator, n) for n in ("add", "sub", "mul", "floordiv", "mod")},
    **{f"_operator.{n}": getattr(operator, n) for n in ("getitem", "neg", "eq", "ge", "le")},
}
_FORBIDDEN = ("from_file", "save", "set_data")
"""Operators of ATen that touch more than the tensors they are given."""
_AS_THEY_ARE = {
    *("as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools"),
    *("as_string", "as_int_lists", "as_float_lists"),
}
_MODES = ("train", "training")
"""Arguments of dropout and normalisation that say whether the model is training."""


class ExportedModule(torch.nn.Module):
    """The graph as a module, with the parameters and buffers under their own names.

    Dropout and BatchNorm follow `train()` and `eval()`, whichever the model was exported in.
    """

    def __init__(self, program: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
        self._fed: list[str] = []
        self._held: dict[str, str] = {}
        for kind, spec in (pair for given in signature["input_specs"] for pair in given.items()):
            if kind == "user_input":
                self._fed.append(_name_of(spec["arg"]))
            elif kind in ("parameter", "buffer", "tensor_constant"):
                self._held[spec["arg"]["name"]] = spec[f"{kind}_name"]
            else:
                raise ConfigError(f"the exported model has inputs of kind '{kind}'; {_REMEDY}")
        for name in self._held.values():
            _place(self, name, tensors[name])
        outputs = [spec["user_output"]["arg"] for spec in signature["output_specs"]]
        self._outputs = [_name_of(arg) for arg in outputs]
        self._nodes = [_Node(node, set(self._held)) for node in graph["nodes"]]

    def forward(self, *given: Any) -> Any:
        values = {name: _attribute(self, path) for name, path in self._held.items()}
        values |= zip(self._fed, given, strict=True)
        for node in self._nodes:
            node.run(values, self.training)
        found = tuple(values[name] for name in self._outputs)
        return found[0] if len(found) == 1 else found


class _Node:
    """One call of an operator."""

    def __init__(self, node: dict[str, Any], held: set[str]) -> None:
        self._function = _find_operator(node["target"])
        given = {item["name"]: item["arg"] for item in node["inputs"]}
        self._named = [(name, _reader(arg)) for name, arg in given.items()]
        self._keyword = [item["kind"] == 2 for item in node["inputs"]]
        # BatchNorm without its own statistics always uses those of the batch.
        self._follows = "as_none" not in given.get("running_mean", {})
        self._outputs = [_names_of(output) for output in node["outputs"]]
        first = node["inputs"][0]["arg"].get("as_tensor", {}) if node["inputs"] else {}
        in_place = node["target"].split(".")[-2].endswith("_")
        self._counts = in_place and first.get("name") in held  # BatchNorm's batch counter

    def run(self, values: dict[str, Any], training: bool) -> None:
        if self._counts and not training:
            return
        positional, by_name = [], {}
        for (name, read), keyword in zip(self._named, self._keyword, strict=True):
            value = read(values)
            if name in _MODES and self._follows:
                value = training
            elif name == "dropout_p" and not training:  # within attention
                value = 0.0
            if keyword:
                by_name[name] = value
            else:
                positional.append(value)
        found = self._function(*positional, **by_name)
        several = len(self._outputs) > 1
        for names, value in zip(self._outputs, found if several else [found], strict=True):
            values.update(zip(names, value, strict=True) if isinstance(names, list) else [])
            if isinstance(names, str):
                values[names] = value


def read_program(path: Path) -> ExportedModule:
    """The module in a file that torch.export.save has written."""
    try:
        with zipfile.ZipFile(path) as archive:
            top = archive.namelist()[0].partition("/")[0]
            program = json.loads(archive.read(f"{top}/models/model.json"))
            if program["schema_version"]["major"] != _SCHEMA:
                raise ConfigError(f"{path} has the format of another version of torch; {_REMEDY}")
            tensors = dict(_tensors(archive, f"{top}/data/weights/", "weights"))
            tensors |= _tensors(archive, f"{top}/data/constants/", "constants")
            return ExportedModule(program, tensors)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:  # anything, from a damaged archive or graph
        raise ConfigError(
            f"{path} is not what torch.export.save writes: {describe_failure(error)}; export it "
            f"again, or {_REMEDY}"
        ) from error


def _tensors(
    archive: zipfile.ZipFile, folder: str, kind: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tied weights are one tensor under several names."""
    made: dict[str, torch.Tensor] = {}
    described = json.loads(archive.read(f"{folder}model_{kind}_config.json"))
    for name, entry in described["config"].items():
        place, meta = entry["path_name"], entry["tensor_meta"]
        if entry["use_pickle"]:
            raise ConfigError(f"'{name}' is pickled in it, which could run code; {_REMEDY}")
        if place not in made:
            dtype = _DTYPES[meta["dtype"]]
            flat = torch.frombuffer(bytearray(archive.read(folder + place)), dtype=dtype)
            sizes, steps = ([size["as_int"] for size in meta[k]] for k in ("sizes", "strides"))
            tensor = torch.as_strided(flat, sizes, steps, meta["storage_offset"]["as_int"]).clone()
            if entry["is_param"]:
                tensor = torch.nn.Parameter(tensor, meta["requires_grad"])
            made[place] = tensor
        yield name, made[place]


def _find_operator(target: str) -> Callable[..., Any]:
    if target in _ARITHMETIC:
        return _ARITHMETIC[target]
    parts = target.split(".")
    if parts[:3] != ["torch", "ops", "aten"] or len(parts) != 5 or parts[3] in _FORBIDDEN:
        raise ConfigError(f"it calls {target!r}, which is not an allowed operator; {_REMEDY}")
    packet = getattr(torch.ops.aten, parts[3], None)
    found: Any = getattr(packet, parts[4], None)
    if not isinstance(found, torch._ops.OpOverload):
        raise ConfigError(f"it calls {target!r}, which this torch does not have; {_REMEDY}")
    return found  # type: ignore[no-any-return]


def _reader(arg: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """How to get an argument from the values so far."""
    (kind, value), *_ = arg.items()
    if kind in ("as_tensor", "as_sym_int", "as_sym_bool", "as_sym_float"):
        return _one(value)
    if kind in ("as_tensors", "as_sym_ints", "as_optional_tensors"):
        readers = [_one(item) for item in value]
        return lambda values: [read(values) for read in readers]
    constants: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(_AS_THEY_ARE, lambda: value),
        "as_none": lambda: None,
        "as_scalar_type": lambda: _DTYPES[value],
        "as_memory_format": lambda: _FORMATS[value],
        "as_layout": lambda: torch.strided,
        "as_device": lambda: torch.device("cpu"),
    }
    if kind not in constants:
        raise ConfigError(f"it has an argument of kind '{kind}', which is not supported; {_REMEDY}")
    constant = constants[kind]()
    return lambda values: constant


def _one(item: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """A value by its name, or the constant in its place."""
    (kind, value), *_ = item.items()
    if kind in ("name", "as_name"):
        return lambda values: values[value]
    if kind == "as_tensor":
        return lambda values: values[value["name"]]
    constant = None if kind == "as_none" else value
    return lambda values: constant


def _names_of(output: dict[str, Any]) -> str | list[str] | None:
    if "as_tensors" in output:
        return [item["name"] for item in output["as_tensors"]]
    return None if "as_none" in output else _name_of(output)


def _name_of(arg: dict[str, Any]) -> str:
    ((kind, value),) = arg.items()
    if kind not in ("as_tensor", "as_sym_int"):
        raise ConfigError(f"it has inputs or outputs of kind '{kind}'; {_REMEDY}")
    return str(value["name"] if kind == "as_tensor" else value["as_name"])


def _place(root: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    *path, last = name.split(".")
    owner = root
    for part in path:
        if part not in owner._modules:
            owner.add_module(part, torch.nn.Module())
        owner = owner.get_submodule(part)
    if isinstance(tensor, torch.nn.Parameter):
        owner.register_parameter(last, tensor)
    else:
        owner.register_buffer(last, tensor)


def _attribute(root: torch.nn.Module, name: str) -> torch.Tensor:
    owner, _, last = name.rpartition(".")
    found: torch.Tensor = getattr(root.get_submodule(owner), last)
    return found

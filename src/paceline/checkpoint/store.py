"""The folder of a run's checkpoints: each is whole, or does not exist.

A checkpoint is a subfolder, `step-00000120`, that holds for every part P its arrays
(`P.safetensors`), its other values (`P.json`), and a manifest (`checkpoint.json`) with the length
and the checksum of each file. Parts are written into a draft, `.draft-step-00000120`, by any
number of ranks; when all are there, one rank adds the manifest and renames the draft.

A run that is killed may leave a hidden folder, which the next `begin` removes: `.draft-NAME`,
`.gone-...` (being removed), or `.old-NAME` (being replaced, and still the checkpoint of that name
until another has taken its place).
"""

from __future__ import annotations

import errno
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.checkpoint.files import check_length, load_arrays, parse, verify, write_file
from paceline.checkpoint.tree import join, split
from paceline.core.files import render_json, sync_folder, synced_draft
from paceline.core.safetensors import CHUNK_BYTES, Tensor, safetensors_chunks
from paceline.core.trees import Tree
from paceline.errors import CheckpointError, OutputError

FORMAT = 2
MANIFEST = "checkpoint.json"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*-([0-9]+)")
PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
CHECKSUM = re.compile(r"[0-9a-f]{8}")
FIRST_SLEEP_S, LONGEST_SLEEP_S = 0.005, 0.2
REMEDY = ". Resume from another one, or delete this one."

ADVICE = {
    errno.ENOSPC: "make room there, or choose another place",
    errno.EDQUOT: "make room there, or choose another place",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or choose another place",
    errno.ENOENT: "see the messages of other ranks, one of which may have given it up",
    errno.ETIMEDOUT: "see the messages of the ranks that should have written them",
}


class FormatError(CheckpointError):
    """A checkpoint of another version of Paceline: whole, and unreadable here."""


class Store:
    """The checkpoints in one folder, the `keep` newest of them.

    One rank calls `begin`, then every rank may `write` parts, from any thread, and one calls
    `commit`. There is one draft at a time. A write that fails raises an OutputError and removes the
    draft, so that the rank that waits in `commit` fails soon; committed checkpoints stay. Reading
    raises nothing but CheckpointError, whatever the files hold.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        assert keep >= 1, f"keep is {keep}, expected 1 or more"
        self.folder = Path(folder)
        self.keep = keep

    def names(self) -> list[str]:
        """The checkpoints that have a manifest, oldest first by the number in their name."""
        try:
            entries = [path.name.removeprefix(".old-") for path in self.folder.iterdir()]
            found = {name for name in entries if NAME.fullmatch(name)}
            whole = [name for name in found if (self._place(name) / MANIFEST).is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                f"the checkpoints in {self.folder} cannot be listed: {error.strerror}. "
                "Choose a folder that you can read."
            ) from error
        return sorted(whole, key=_age)

    def begin(self, name: str) -> None:
        """Make the draft, after removing what killed runs have left."""
        draft = self._draft(name)
        with self._writing(name):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            draft.mkdir()

    def write(self, name: str, part: str, tree: Tree) -> None:
        """Write a part into the draft: its JSON last, which marks the part as complete."""
        assert _is_part(part), f"{part!r} is not a valid name of a part"
        draft = self._draft(name)
        with self._writing(name):
            arrays, values = split(tree)
            widest_first = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
            tensors = {key: Tensor.of(array) for key, array in widest_first}
            (draft / f"{part}.json").unlink(missing_ok=True)
            record = write_file(draft / f"{part}.safetensors", safetensors_chunks(tensors))
            document = {"arrays": record, "values": values}
            write_file(draft / f"{part}.json", [render_json(document)])

    def commit(
        self, name: str, parts: Sequence[str], facts: Tree, timeout_s: float = 120.0
    ) -> None:
        """Wait for all parts, make the draft a checkpoint, then remove those that are too old.

        Checkpoints with a higher number than this one are neither counted nor removed: a run that
        resumed from an earlier one must not lose what it writes now to what it wrote then.
        """
        assert all(_is_part(part) for part in parts), f"not all of {parts} are names of parts"
        arrays, values = split(facts)
        assert not arrays, f"facts are plain values; {', '.join(arrays)} are arrays"
        draft = self._draft(name)
        with self._writing(name):
            _await_parts(draft, parts, timeout_s)
            files = {file: record for part in parts for file, record in _measure(draft, part)}
            manifest = {"format": FORMAT, "facts": values, "files": files}
            write_file(draft / MANIFEST, [render_json(manifest)])
            sync_folder(draft)
            self._rename_draft(name)
        with suppress(CheckpointError):
            passed = [other for other in self.names() if _age(other) <= _age(name)]
            for other in passed[: -self.keep]:
                self._remove(self._place(other))

    def accept(self, name: str, place: Path) -> None:
        """Take in a checkpoint that lies in another folder."""
        self.begin(name)
        draft = self._draft(name)
        with self._writing(name):
            for file in place.iterdir():
                with file.open("rb") as source, synced_draft(draft / file.name) as copy:
                    shutil.copyfileobj(source, copy, CHUNK_BYTES)
            sync_folder(draft)
            self._rename_draft(name)

    def has_draft(self, name: str) -> bool:
        """Whether it is being written."""
        return self._draft(name).is_dir()

    def discard(self, name: str) -> None:
        """Drop a draft, if there is one."""
        self._remove(self._draft(name))

    def check(self, name: str) -> None:
        """Read all files; raise a CheckpointError unless each is as it was written."""
        with self._reading(name) as place:
            manifest = _read_manifest(place)
            join({}, manifest["facts"])
            for file, record in manifest["files"].items():
                verify(place / file, record)

    def facts(self, name: str) -> Tree:
        """The facts that `commit` was given."""
        with self._reading(name) as place:
            return join({}, _read_manifest(place)["facts"])

    def parts(self, name: str) -> list[str]:
        """The names of its parts, in the order given to `commit`."""
        with self._reading(name) as place:
            files = _read_manifest(place)["files"]
            return [file.removesuffix(".json") for file in files if file.endswith(".json")]

    def read(self, name: str, part: str) -> Tree:
        """The tree of this part, checked; the arrays are the caller's own."""
        if part not in (parts := self.parts(name)):
            raise CheckpointError(
                f"the checkpoint {self._place(name)} has no part {part!r}; "
                f"it has {', '.join(parts) or 'none'}{REMEDY}"
            )
        with self._reading(name) as place:
            files = _read_manifest(place)["files"]
            for file in (f"{part}.json", f"{part}.safetensors"):
                verify(place / file, files[file])
            document = parse(place / f"{part}.json")
            if not isinstance(document, dict) or "values" not in document:
                raise ValueError(f"{part}.json has no values")
            return join(load_arrays(place / f"{part}.safetensors"), document["values"])

    def _draft(self, name: str) -> Path:
        assert NAME.fullmatch(name), f"{name!r} is not a name of a checkpoint, like step-00000120"
        return self.folder / f".draft-{name}"

    def _place(self, name: str) -> Path:
        """Its folder; one that was being replaced when a run was killed is still the old one."""
        final, old = self.folder / name, self.folder / f".old-{name}"
        return old if old.exists() and not final.exists() else final

    def _rename_draft(self, name: str) -> None:
        final, old = self.folder / name, self.folder / f".old-{name}"
        if final.exists():
            self._remove(old)
            final.rename(old)
        try:
            self._draft(name).rename(final)
        except OSError:
            with suppress(OSError):
                old.rename(final)
            raise
        sync_folder(self.folder)
        self._remove(old)

    def _sweep(self) -> None:
        for path in list(self.folder.iterdir()):
            if path.name.startswith((".draft-", ".gone-")):
                self._remove(path)
            elif path.name.startswith(".old-"):
                final = self.folder / path.name.removeprefix(".old-")
                if final.exists():
                    self._remove(path)
                else:
                    path.rename(final)

    def _remove(self, place: Path) -> None:
        """Hide it at once, then remove file by file; what is left waits for the next sweep."""
        try:
            place = place.rename(self.folder / f".gone-{secrets.token_hex(8)}")
        except FileNotFoundError:
            return
        except OSError:
            pass  # a full disk may refuse even a new name
        shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.discard(name)
            advice = ADVICE.get(error.errno or 0, "choose a place that you can write to")
            raise OutputError(
                f"the checkpoint {self.folder / name} cannot be written: "
                f"{error.strerror or error}; older ones are unchanged. To continue, {advice}."
            ) from error
        except Exception as error:  # so that no rank waits for a part that will not come
            self.discard(name)
            raise OutputError(
                f"the checkpoint {self.folder / name} cannot be written: "
                f"{type(error).__name__}: {error}; older ones are unchanged."
            ) from error

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        place = self.folder / name
        try:
            if not NAME.fullmatch(name) or not (place := self._place(name)).is_dir():
                raise CheckpointError(
                    f"there is no checkpoint {name!r} in {self.folder}; "
                    f"there are: {', '.join(self.names()) or 'none'}"
                )
            yield place
        except OSError as error:
            file = Path(error.filename).name if error.filename else "a file"
            raise CheckpointError(
                f"the checkpoint {place} cannot be read: {file}: {error.strerror}{REMEDY}"
            ) from error
        except ValueError as error:
            raise CheckpointError(f"the checkpoint {place} is damaged: {error}{REMEDY}") from error


def newest_valid(store: Store, report: Callable[[str], None]) -> str | None:
    """The newest checkpoint that is whole; every damaged one after it is reported.

    If there is none, one of another format is an error: a run that began anew would replace it.
    """
    faults: list[CheckpointError] = []
    valid = None
    for name in reversed(store.names()):
        try:
            store.check(name)
        except CheckpointError as error:
            faults.append(error)
        else:
            valid = name
            break
    others = [fault for fault in faults if isinstance(fault, FormatError)]
    if valid is None and others:
        raise others[0]
    result = f"{valid} before it is used" if valid else "no valid one is left"
    for fault in faults:
        report(f"{str(fault).removesuffix(REMEDY)}; {result}")
    return valid


def _age(name: str) -> tuple[int, str]:
    match = NAME.fullmatch(name)
    assert match, f"{name!r} is not a name of a checkpoint, like step-00000120"
    return int(match[1]), name


def _is_part(text: str) -> bool:
    """Whether it can name a part: it stays in the folder and is not the manifest."""
    return PART.fullmatch(text) is not None and f"{text}.json" != MANIFEST


def _await_parts(draft: Path, parts: Sequence[str], timeout_s: float) -> None:
    """Poll until every part's JSON is there; listing a folder makes NFS ask its server."""
    end_s = time.monotonic() + timeout_s
    sleep_s = FIRST_SLEEP_S
    while True:
        there = {path.name for path in draft.iterdir()}
        missing = [part for part in parts if f"{part}.json" not in there]
        if not missing:
            return
        if time.monotonic() >= end_s:
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"after {timeout_s:g} s {len(missing)} of {len(parts)} parts are missing "
                f"({', '.join(missing)})",
            )
        time.sleep(sleep_s)
        sleep_s = min(1.5 * sleep_s, LONGEST_SLEEP_S)


def _measure(draft: Path, part: str) -> Iterator[tuple[str, Tree]]:
    """The entries of a part in the manifest, from its JSON."""
    path, arrays = draft / f"{part}.json", draft / f"{part}.safetensors"
    data = path.read_bytes()
    try:
        document = parse(path)
        if not isinstance(document, dict):
            raise ValueError(f"{path.name} is no dict")
        record = document["arrays"]
        _check_record(arrays.name, record)
        check_length(arrays, record)
    except (ValueError, TypeError, KeyError) as error:
        raise OSError(errno.EIO, f"{part} was not written correctly: {error}") from error
    yield path.name, {"bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}
    yield arrays.name, record


def _read_manifest(place: Path) -> Tree:
    """The manifest; it names only files in this folder, two for each part."""
    manifest = parse(place / MANIFEST)
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise ValueError(f"{MANIFEST} is not a manifest")
    if manifest["format"] != FORMAT:
        raise FormatError(
            f"the checkpoint {place} has format {manifest['format']}, and this version of Paceline "
            f"reads format {FORMAT}: finish the run with the version that began it, or start a new "
            "run in another run_dir"
        )
    files, facts = manifest.get("files"), manifest.get("facts")
    if not isinstance(files, dict) or not isinstance(facts, dict):
        raise ValueError(f"{MANIFEST} has no files or no facts")
    for file, record in files.items():
        part, _, kind = file.rpartition(".")
        if not _is_part(part) or kind not in ("json", "safetensors"):
            raise ValueError(f"{MANIFEST} names {file!r}, which is not a file of a checkpoint")
        if f"{part}.json" not in files or f"{part}.safetensors" not in files:
            raise ValueError(f"{MANIFEST} names {file} without its other half")
        _check_record(file, record)
    return manifest


def _check_record(file: str, record: object) -> None:
    fits = (
        isinstance(record, dict)
        and type(record.get("bytes")) is int
        and isinstance(record.get("crc32"), str)
        and CHECKSUM.fullmatch(record["crc32"])
    )
    if not fits:
        raise ValueError(f"the length and checksum of {file} are missing")

"""The name of a data set, with this node's copies in place of its files."""

import logging
import os
from pathlib import Path

from paceline.data.cache.node_cache import NodeCache
from paceline.data.files.paths import SUFFIXES, expand_pattern, files_of, is_pattern, read_list
from paceline.data.open import READERS

log = logging.getLogger(__name__)


def copy_files(spec: str, cache: NodeCache) -> str:
    """Copy the files of this data set, and return the name of the copies.

    Many files become a list in the cache's folder. Folders are not copied.
    """
    is_list = spec.endswith(SUFFIXES)
    if not is_list and not spec.endswith(tuple(READERS)):
        log.info("%s is not copied, since it is not a file", spec)
        return spec
    if not is_list and not is_pattern(spec):
        return _join(cache.fetch(files_of(Path(spec))))
    entries = [files_of(path) for path in (read_list(spec) if is_list else expand_pattern(spec))]
    found = iter(cache.fetch([path for files in entries for path in files]))
    lines = [_join([next(found) for _ in files]) for files in entries]
    copied = cache.folder / f"{os.getpid()}-{id(cache)}-{len(lines)}.list"
    copied.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(copied)


def _join(paths: list[Path]) -> str:
    return ",".join(str(path.expanduser().absolute()) for path in paths)

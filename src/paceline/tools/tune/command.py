"""The user's command: as a trial runs it, and as the report recommends it."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from paceline.tools.tune.plan import RankSetting

_ENDLESS = 100_000
_OVERRIDES = (
    f"epochs={_ENDLESS}",
    f"validate_every={_ENDLESS}",
    "checkpoint_every=null",
    "max_time=null",
    "resume=null",
    "progress=off",
)
"""Settings for a trial of `train`: it only trains, until it is ended."""


@dataclass(frozen=True)
class TrialCommand:
    """`train` or `run`, its options, and for `run` the script with its arguments."""

    kind: str
    options: tuple[str, ...]
    script: tuple[str, ...] = ()
    on_hosts: bool = False
    """Whether its options name hosts."""

    def is_alone(self, setting: RankSetting) -> bool:
        """Whether the process that is started is the only rank, and not a launcher."""
        return setting.ranks == 1 and not self.on_hosts

    def shown(self, setting: RankSetting) -> str:
        """For the user to copy."""
        return shlex.join(["paceline", *self._words(setting)])

    def of_trial(self, setting: RankSetting, folder: Path) -> list[str]:
        """For a trial that writes files only to `folder`, and is not restarted."""
        extra = ["--restarts", "0"]
        if self.kind == "train":
            # In quotes: the value is read as YAML, and a path may hold anything.
            settings = (*_OVERRIDES, f"run_dir={json.dumps(str(folder / 'run'))}")
            extra += ["--summary", str(folder / "summary.json")]
            extra += [word for text in settings for word in ("--set", text)]
        return [sys.executable, "-m", "paceline", *self._words(setting, extra)]

    def _words(self, setting: RankSetting, extra: list[str] | None = None) -> list[str]:
        chosen = ["-n", str(setting.ranks), "--threads", str(setting.threads)]
        tail = ["--", *self.script] if self.script else []
        return [self.kind, *self.options, *chosen, *(extra or ()), *tail]

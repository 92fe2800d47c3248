"""The exception tree: whatever a user can mend is a PacelineError, and its text says how."""


class PacelineError(Exception):
    """Base of all errors raised on purpose; the CLI prints them without a traceback."""


class ConfigError(PacelineError):
    """A setting is unknown, wrong or contradicts another; all of them are named at once."""


class DataError(PacelineError):
    """A data set is missing, damaged, empty or does not fit the model."""


class LaunchError(PacelineError):
    """The ranks could not be started, or the world that formed is not the one that was started."""


class ReplicaError(PacelineError):
    """The replicas of the ranks differ, or a model cannot be trained as a replica."""


class WorldError(PacelineError):
    """Another rank failed or left, so this one cannot go on."""


class RanksLost(PacelineError):
    """Ranks of an elastic world are gone: those that are left go on without them.

    No WorldError: what is tried again in another way after one of those must not go on here.
    """


class TrainingError(PacelineError):
    """Training went wrong: a loss that is not finite, a gradient where none may be."""


class OutputError(PacelineError):
    """Something a run leaves behind could not be written."""


class CheckpointError(PacelineError):
    """A checkpoint is damaged, missing or of another run."""


class Interrupted(PacelineError):
    """A run was asked to stop before its end, and has saved where it was.

    `code` is what the process should exit with: 75 asks a scheduler to start the job again.
    """

    def __init__(self, message: str, code: int = 75) -> None:
        super().__init__(message)
        self.code = code


SAVED = 75
"""Exit code of ranks that saved and stopped before their work was done (EX_TEMPFAIL)."""

HOST_LOST = 68
"""Exit code of the launcher when a host was lost (EX_NOHOST): elsewhere the job could go on."""

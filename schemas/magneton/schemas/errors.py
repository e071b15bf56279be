"""Typed errors. Each knows the reason, the file and the remedy.

The command line turns any ``MagnetonError`` into one line on stderr and the error's exit code, in one place
(``magneton.cli.app``). Library users catch the class they care about.
"""

from __future__ import annotations

from os import PathLike

EXIT_OK = 0
EXIT_BAD_INPUT = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141


def printable(text: object) -> str:
    """Return ``text`` on one line with control characters escaped, safe to show on a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in str(text))


class MagnetonError(Exception):
    """Base of every error that a user can mend.

    Args:
        reason: what is wrong, in one clause.
        path: the file or directory concerned, if any.
        remedy: what the user can do, if anything.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(self, reason: str, *, path: str | PathLike[str] | None = None, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = None if path is None else str(path)
        self.remedy = remedy

    @property
    def code(self) -> str:
        """Stable machine-readable name of the error: the class name."""
        return type(self).__name__

    def __str__(self) -> str:
        parts = [] if self.path is None else [f"{self.path}: "]
        parts.append(self.reason)
        if self.remedy:
            parts.append(f" ({self.remedy})")
        return printable("".join(parts))


class UsageError(MagnetonError):
    """The options or arguments contradict one another, or have values that are not allowed."""


class NothingRecordedError(MagnetonError):
    """A program ran, and nothing of it was recorded."""


class MissingDependencyError(MagnetonError):
    """An optional package that this command needs is not installed."""


class InputNotFoundError(MagnetonError):
    """A file or directory named by the user does not exist or cannot be opened."""


class OutputExistsError(MagnetonError):
    """The output exists already, and overwriting was not requested."""


class OutputFailedError(MagnetonError):
    """An output cannot be written: the disk is full, permission is lacking, too many files are open."""


class InputFormatError(MagnetonError):
    """A file is in no format that Magneton reads, or does not follow its format."""


class TruncatedInputError(InputFormatError):
    """A file stops in the middle."""


class UnsupportedCompressionError(InputFormatError):
    """A file is compressed with a codec that is not available."""


class LimitExceededError(MagnetonError):
    """A file is larger, deeper or more compressed than the limits allow."""


class UnsafeArchiveError(MagnetonError):
    """An archive would write outside its target or contains something that is not a regular file."""


class ChecksumError(MagnetonError):
    """A file does not have the hash its manifest states."""


class SchemaVersionError(MagnetonError):
    """A table or document has no version, a newer one, or columns that do not fit its version."""


class ClockAlignmentError(MagnetonError):
    """Times of one clock cannot be converted to times of another: nothing was recorded that relates the two clocks."""


class InsufficientPowerDataError(MagnetonError):
    """Power samples do not cover enough of the window."""


class InsufficientRepeatsError(MagnetonError):
    """There are too few windows with the operation repeated, or too few with the operation run once."""


class NotComparableError(MagnetonError):
    """Two recordings did not do the same work, so a difference would mean nothing."""


class RankError(MagnetonError):
    """Ranks of a multi-process recording contradict one another."""


class InvalidNameError(MagnetonError):
    """A name is not allowed in this place."""

"""Exceptions and warnings. Their text is that of the command line ``of-opt``."""

from __future__ import annotations

from typing import List, NamedTuple, Optional


class Diagnostic(NamedTuple):
    """One thing that is wrong."""

    severity: str
    """"error", "warning" or "note"."""
    code: str
    """A stable identifier, such as "E0701"."""
    message: str
    """What is wrong, one sentence."""
    location: Optional[str]
    """Where: a node of the model, or a place in a text."""
    notes: List[str]
    """Further facts."""
    hint: Optional[str]
    """What to do about it."""


class Error(Exception):
    """Something went wrong. ``str(error)`` is the text of the command line; ``diagnostics`` has its parts."""

    diagnostics: List[Diagnostic] = []


class ModelError(Error):
    """A model is damaged, or its types and shapes do not fit each other."""


class UnsupportedError(Error, NotImplementedError):
    """A model or plan needs what is not supported, or what this machine lacks."""


class InputError(Error, ValueError):
    """A value or an option does not fit."""


class FileError(Error, OSError):
    """A file cannot be read or written."""


class PlanError(Error):
    """A plan is damaged, of another version, or does not verify."""


class LimitError(Error):
    """A limit on time or memory is exceeded."""


class RunError(Error):
    """A run failed."""


class CancelledError(RunError):
    """:meth:`Session.cancel` ended the run."""


class CompileWarning(UserWarning):
    """A compilation succeeded with a remark, such as an op that has no native code."""


_CLASSES = {
    "E0302": UnsupportedError,
    "E0401": InputError,
    "E0502": LimitError,
    "E0601": PlanError,
    "E0701": InputError,
    "E0702": RunError,
    "E0801": FileError,
}


def exception(text: str, parts: list) -> Error:
    """The exception for diagnostics; the first error decides its class."""
    diagnostics = [Diagnostic(*part) for part in parts]
    code = next((d.code for d in diagnostics if d.severity == "error"), "")
    kind = _CLASSES.get(code, ModelError)
    if kind is RunError and diagnostics[0].message == "the run was cancelled":
        kind = CancelledError
    error = kind(text)
    error.diagnostics = diagnostics
    return error

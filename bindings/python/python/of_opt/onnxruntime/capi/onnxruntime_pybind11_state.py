"""Exceptions of onnxruntime's names, with its numbers and names of statuses in their text."""

from __future__ import annotations

from ... import _errors


class _Status(Exception):
    number = 1
    name = "FAIL"

    @classmethod
    def of(cls, text: str) -> "_Status":
        """The exception with onnxruntime's prefix."""
        return cls(f"[ONNXRuntimeError] : {cls.number} : {cls.name} : {text}")


class Fail(_Status):
    """Any other failure."""


class InvalidArgument(_Status):
    """An input, an output's name or an option is wrong."""

    number, name = 2, "INVALID_ARGUMENT"


class NoSuchFile(_Status):
    """A file does not exist."""

    number, name = 3, "NO_SUCHFILE"


class NoModel(_Status):
    """There is no model."""

    number, name = 4, "NO_MODEL"


class EngineError(_Status):
    """The engine failed."""

    number, name = 5, "ENGINE_ERROR"


class RuntimeException(_Status):
    """A run failed."""

    number, name = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(_Status):
    """The bytes are no model."""

    number, name = 7, "INVALID_PROTOBUF"


class ModelLoaded(_Status):
    """A model is loaded already."""

    number, name = 8, "MODEL_LOADED"


class NotImplemented(_Status):  # noqa: A001 - the name of onnxruntime
    """The model needs what is not supported."""

    number, name = 9, "NOT_IMPLEMENTED"


class InvalidGraph(_Status):
    """The graph of the model is wrong."""

    number, name = 10, "INVALID_GRAPH"


class EPFail(_Status):
    """An execution provider failed."""

    number, name = 11, "EP_FAIL"


def of_error(error: Exception) -> Exception:
    """The exception of onnxruntime for one of this package."""
    text = str(error)
    if isinstance(error, _errors.FileError):
        return NoSuchFile.of(text) if "No such file" in text else Fail.of(text)
    if isinstance(error, _errors.UnsupportedError):
        return NotImplemented.of(text)
    if isinstance(error, _errors.InputError):
        return InvalidArgument.of(text)
    if isinstance(error, _errors.ModelError):
        damaged = any(d.code == "E0301" for d in error.diagnostics)
        return InvalidProtobuf.of(text) if damaged else InvalidGraph.of(text)
    if isinstance(error, _errors.RunError):
        return RuntimeException.of(text)
    return Fail.of(text)

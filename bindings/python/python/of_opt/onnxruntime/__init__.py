"""The interface of onnxruntime, for programs that use it.

Replace ``import onnxruntime as ort`` by ``import of_opt.onnxruntime as ort``. For a package that imports onnxruntime itself, call
:func:`install` before it is imported.
"""

from __future__ import annotations

import sys
from typing import List

from . import capi
from ._options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from ._session import InferenceSession, get_available_providers
from ._values import IOBinding, ModelMetadata, NodeArg, OrtValue

# The version of onnxruntime whose interface this is. Programs compare it.
__version__ = "1.32.0"

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "install",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
]


def get_all_providers() -> List[str]:
    """The execution providers that this package knows: the CPU."""
    return get_available_providers()


def get_device() -> str:
    """The device that sessions use."""
    return "CPU"


def get_version_string() -> str:
    """The version of onnxruntime whose interface this is."""
    return __version__


def get_build_info() -> str:
    """What executes the models."""
    from .. import __version__ as version

    return f"of_opt {version}"


def set_default_logger_severity(severity: int) -> None:
    """Does nothing: sessions log nothing."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Does nothing: sessions log nothing."""


def disable_telemetry_events() -> None:
    """Does nothing: there is no telemetry."""


def install() -> None:
    """Makes ``import onnxruntime`` give this module, for packages that import it.

    Raises:
        RuntimeError: onnxruntime itself is imported already.
    """
    loaded = sys.modules.get("onnxruntime")
    if loaded is not None and loaded is not sys.modules[__name__]:
        raise RuntimeError("onnxruntime is imported already; call install() before")
    sys.modules["onnxruntime"] = sys.modules[__name__]
    for name, module in list(sys.modules.items()):
        if name.startswith(__name__ + ".capi"):
            sys.modules["onnxruntime" + name[len(__name__) :]] = module

"""As in onnxruntime: the same names under another module."""

from .onnxruntime_pybind11_state import *  # noqa: F401,F403
from .onnxruntime_pybind11_state import _Status  # noqa: F401

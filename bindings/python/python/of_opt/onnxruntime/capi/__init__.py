"""The modules of onnxruntime that programs import exceptions from."""

from . import _pybind_state, onnxruntime_pybind11_state

__all__ = ["_pybind_state", "onnxruntime_pybind11_state"]

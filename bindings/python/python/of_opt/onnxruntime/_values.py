"""Values and their types, with onnxruntime's names."""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional, Sequence

import numpy as np

# onnxruntime's name of each dtype, and ONNX's number.
_TYPES = {
    "float32": ("float", 1),
    "uint8": ("uint8", 2),
    "int8": ("int8", 3),
    "uint16": ("uint16", 4),
    "int16": ("int16", 5),
    "int32": ("int32", 6),
    "int64": ("int64", 7),
    "str": ("string", 8),
    "bool": ("bool", 9),
    "float16": ("float16", 10),
    "float64": ("double", 11),
    "uint32": ("uint32", 12),
    "uint64": ("uint64", 13),
    "bfloat16": ("bfloat16", 16),
    "float8_e4m3fn": ("float8e4m3fn", 17),
    "float8_e4m3fnuz": ("float8e4m3fnuz", 18),
    "float8_e5m2": ("float8e5m2", 19),
    "float8_e5m2fnuz": ("float8e5m2fnuz", 20),
    "uint4": ("uint4", 21),
    "int4": ("int4", 22),
    "float4_e2m1fn": ("float4e2m1", 23),
    "float8_e8m0fnu": ("float8e8m0", 24),
    "uint2": ("uint2", 25),
    "int2": ("int2", 26),
}
_BY_NUMBER = {number: name for name, (_, number) in _TYPES.items()}


def type_text(dtype: str) -> str:
    """``tensor(float)`` for "float32"."""
    return f"tensor({_TYPES[dtype][0]})" if dtype in _TYPES else dtype


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, "str" for text."""
    return "str" if array.dtype.kind in "USOT" else array.dtype.name


def numpy_dtype(element_type: Any) -> np.dtype:
    """The dtype of a NumPy type or of ONNX's number."""
    if not isinstance(element_type, int):
        return np.dtype(element_type)
    name = _BY_NUMBER.get(element_type)
    if name is None:
        raise ValueError(f"ONNX has no element type {element_type}")
    if name == "str":
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


class NodeArg:
    """An input or output of a model."""

    def __init__(self, name: str, type: str, shape: Optional[Sequence[Any]]) -> None:  # noqa: A002
        self.name = name
        self.type = type
        self.shape: List[Any] = list(shape or [])

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"

    __repr__ = __str__


class ModelMetadata:
    """What a model says of itself."""

    def __init__(self, info: dict) -> None:
        self.producer_name: str = info["producer_name"]
        self.graph_name: str = info["graph_name"]
        self.domain: str = info["domain"]
        self.description: str = info["description"]
        self.graph_description: str = info["graph_description"]
        self.version: int = info["version"]
        self.custom_metadata_map: dict = info["metadata"]


def _only_cpu(device_type: str) -> None:
    if device_type != "cpu":
        raise ValueError(f"values are in the memory of the CPU, not on '{device_type}'")


class OrtValue:
    """A value: an array in the memory of the CPU, or a list of arrays."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1) -> "OrtValue":
        """A value that shares the array's memory."""
        _only_cpu(device_type)
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(array: Any, onnx_element_type: int) -> "OrtValue":
        """A value that sees the array's memory as elements of ONNX's type."""
        return OrtValue(np.asarray(array).view(numpy_dtype(onnx_element_type)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> "OrtValue":
        """A value of undefined elements."""
        _only_cpu(device_type)
        return OrtValue(np.empty(tuple(shape), numpy_dtype(element_type)))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> "OrtValue":
        """A value that shares a tensor of another library."""
        array = np.from_dlpack(data)
        return OrtValue(array.view(np.bool_) if is_bool_tensor else array)

    def numpy(self) -> np.ndarray:
        """The array."""
        return np.asarray(self._value)

    def shape(self) -> List[int]:
        """The extents."""
        return list(self._value.shape)

    def data_type(self) -> str:
        """The type, such as ``tensor(float)``."""
        if self.is_tensor_sequence():
            return f"seq({type_text(dtype_name(self._value[0]))})" if self._value else "seq()"
        return type_text(dtype_name(self._value))

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return _TYPES[dtype_name(self._value)][1]

    def device_name(self) -> str:
        """Where the value is."""
        return "cpu"

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self._value.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        """The size of the elements."""
        return self._value.nbytes

    def has_value(self) -> bool:
        """Whether the value is not an absent optional."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Whether the value is an array."""
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Whether the value is a list of arrays."""
        return isinstance(self._value, list)

    def is_sparse_tensor(self) -> bool:
        """Never: there are no sparse values."""
        return False

    def update_inplace(self, array: Any) -> None:
        """Copies elements into the value."""
        if not self._value.flags.writeable:
            raise ValueError("the value shares memory that is read-only")
        np.copyto(self._value, array, casting="no")

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._value.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple:
        return self._value.__dlpack_device__()


def at_address(address: int, element_type: Any, shape: Sequence[int]) -> np.ndarray:
    """The array at an address."""
    dtype = numpy_dtype(element_type)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_byte * size).from_address(address)
    return np.frombuffer(memory, dtype=dtype).reshape(tuple(shape))


class IOBinding:
    """Inputs and outputs that are bound to memory, for :meth:`InferenceSession.run_with_iobinding`."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._inputs: dict = {}
        # The array of each bound output, or None where the run makes it.
        self._outputs: dict = {}
        self._results: List[Any] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """Binds an input to an array."""
        self._inputs[name] = np.asarray(array)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds an input to memory at an address."""
        _only_cpu(device_type)
        self._inputs[name] = at_address(buffer_ptr, element_type, shape)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an input to a value."""
        self._inputs[name] = ortvalue._value

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Optional[Sequence[int]] = None,
        buffer_ptr: Optional[int] = None,
    ) -> None:
        """Binds an output to memory at an address, or to memory that the run allocates."""
        _only_cpu(device_type)
        bound = None if buffer_ptr is None else at_address(buffer_ptr, element_type, shape or ())
        self._outputs[name] = bound

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to a value."""
        self._outputs[name] = ortvalue._value

    def clear_binding_inputs(self) -> None:
        """Forgets the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forgets the outputs."""
        self._outputs.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Does nothing: memory is that of the CPU."""

    def synchronize_outputs(self) -> None:
        """Does nothing: memory is that of the CPU."""

    def get_outputs(self) -> List[OrtValue]:
        """The results of the last run, in the order of binding."""
        return [OrtValue(result) for result in self._results]

    def copy_outputs_to_cpu(self) -> List[Any]:
        """Copies of the results of the last run."""
        return [result.copy() if isinstance(result, np.ndarray) else result for result in self._results]

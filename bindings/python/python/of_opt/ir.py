"""The compiler's IR: building, reading and rewriting modules.

>>> import of_opt
>>> from of_opt import ir
>>> module = ir.Module("double")
>>> main = module.function("main")
>>> x = main.input("x", ir.tensor("float32", ("N", 4)))
>>> y = main.body.op("of.add", [x, x]).result
>>> main.returns({"y": y})
>>> module.verify()
>>> plan = of_opt.compile(module)

``of-opt ops`` and docs/ops.md list the ops with their operands and attributes, ``of-opt passes`` the passes and pipelines.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from ._native import Function, Module, Op, Region, Value, tensor_type

__all__ = ["Function", "Module", "Op", "Region", "Value", "load", "parse", "tensor"]


def tensor(dtype: Any, shape: Optional[Sequence[Union[int, str, None]]]) -> str:
    """The type of a tensor, as text.

    Args:
        dtype: "float32", "bfloat16", "int64", "bool" …, or a dtype of NumPy.
        shape: extents: numbers, symbols and polynomials over them such as "N" or "N*2 + 1", None for an unknown extent. None is a
            tensor of unknown rank.
    """
    return tensor_type(dtype if isinstance(dtype, str) else _dtype_name(dtype), None if shape is None else list(shape))


def _dtype_name(dtype: Any) -> str:
    import numpy as np

    return np.dtype(dtype).name


def parse(text: str, **options: Any) -> Module:
    """Reads IR text: :meth:`Module.parse`."""
    return Module.parse(text, **options)


def load(path: Any) -> Module:
    """Reads an ONNX model or a file of IR text: :meth:`Module.load`."""
    return Module.load(path)

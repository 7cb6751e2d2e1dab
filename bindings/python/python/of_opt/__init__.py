"""A tensor compiler: compiles ONNX models to native code in process, and runs them.

>>> import numpy as np, of_opt
>>> plan = of_opt.compile("digits.onnx", shapes={"N": 1})
>>> session = of_opt.Session(plan, threads=2)
>>> session.run({"image": np.zeros((1, 1, 8, 8), np.float32)})["probability"].shape
(1, 10)
>>> plan.save("digits.plan")

:mod:`of_opt.onnxruntime` has the interface of onnxruntime, and :mod:`of_opt.jax` compiles functions of JAX.
"""

from __future__ import annotations

import os
import warnings as _warnings
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from ._errors import (
    CancelledError,
    CompileWarning,
    Diagnostic,
    Error,
    FileError,
    InputError,
    LimitError,
    ModelError,
    PlanError,
    RunError,
    UnsupportedError,
)
from ._native import Module, Plan, Port, Session, Variables, __version__
from ._native import compile as _compile
from ._pool import SessionPool

__all__ = [
    "CancelledError",
    "CompileWarning",
    "Diagnostic",
    "Error",
    "FileError",
    "InputError",
    "LimitError",
    "ModelError",
    "Plan",
    "PlanError",
    "Port",
    "RunError",
    "Session",
    "SessionPool",
    "UnsupportedError",
    "Variables",
    "compile",
]

Shapes = Union[Mapping[str, Union[int, Sequence[int]]], Iterable[str]]


def compile(
    model: Any,
    *,
    shapes: Optional[Shapes] = None,
    variants: Iterable[Shapes] = (),
    variables: Union[Mapping[str, str], Iterable[str]] = (),
    threads: int = 0,
    precision: str = "model",
    calibration: Iterable[Union[str, "os.PathLike[str]"]] = (),
    target: str = "cpu",
    isa: Optional[str] = None,
    backends: Iterable[str] = (),
    cpu_code: str = "machine",
    passes: Optional[str] = None,
    winograd: bool = True,
    keep_subnormals: bool = False,
    initializer_inputs: Iterable[str] = (),
    folder: Optional[Union[str, "os.PathLike[str]"]] = None,
    memory: Optional[int] = None,
    time_limit: Optional[float] = None,
    memory_limit: Optional[int] = None,
    tune: Optional[float] = None,
    require_native: bool = False,
    record_rewrites: bool = False,
    mesh: Optional[str] = None,
    layouts: Union[Mapping[str, str], Iterable[str]] = (),
) -> Plan:
    """Compiles a model to a :class:`Plan`.

    Args:
        model: a path to an ONNX or IR file, the bytes of one, an ``onnx.ModelProto``, or an :class:`of_opt.ir.Module`.
        shapes: numbers for open dimensions, ``{"batch": 8}``, or shapes of inputs, ``{"x": (1, 3, 224, 224)}``. A dimension without
            a number stays open: the plan serves every legal extent.
        variants: further programs in the plan, each for other ``shapes``. A run takes the one that accepts its inputs.
        variables: inputs whose values a session keeps, ``{"present": "past"}``: the output "present" is the value of the input "past" in
            the next run. ``{"present": "past:zeros"}`` makes it zeros in a new session; otherwise it is set before the first run
            (:attr:`Session.variables`). Their shapes have numbers.
        threads: workers that the plan is scheduled for; 0 takes all cores.
        precision: "model", or "int8", "bf16", "f16" for products and convolutions.
        calibration: folders with sets of inputs, on which "int8" observes ranges.
        target: "cpu", or a GPU such as "cuda:sm_90".
        isa: instruction set of the CPU, such as "avx2"; None takes the best of this machine.
        backends: backends that execute what they support, in order of preference, such as "xla".
        cpu_code: "machine" compiles kernels in process; "c" by a C compiler.
        passes: passes before code generation, as text; None takes the default pipeline.
        winograd: whether large convolutions may use Winograd's algorithm, whose rounding errors are up to three times as large.
        keep_subnormals: whether kernels of the CPU compute with subnormal numbers, which takes a processor up to a hundred times as
            long. Otherwise they read and write them as zeros.
        initializer_inputs: initializers of the model that stay inputs.
        folder: where external data of a model in memory is.
        memory: the most bytes that the plan's values may take; None is this machine's memory.
        time_limit: the most seconds that the compilation may take.
        memory_limit: the most bytes that the compilation may take.
        tune: seconds for measuring schedules of products and convolutions.
        require_native: whether a model with ops that have no native code is refused, with a list of them. Programs that have the
            runtime alone, such as those that link the C library, have no interpreter for them.
        record_rewrites: whether the plan records which pass replaced which op by which; ``of-opt inspect`` shows it.
        mesh: the devices that the model is sharded over: ``"cpu[2]"``, ``"cpu[2x2]"``, or a file that describes a mesh. All shapes need
            numbers then. A :class:`Session` runs the ranks as threads, or as processes with ``ranks``.
        layouts: layouts of inputs and variables on the mesh, ``{"x": "S(0)"}``, which the search keeps. ``*`` in a name stands for any
            text.

    Raises:
        ModelError: the model is damaged, or its shapes do not fit.
        UnsupportedError: the model has an operator that is not supported, or with ``require_native`` one without native code; all are
            listed.
        InputError: an option is wrong.
        FileError: a file cannot be read.
        LimitError: a limit is exceeded.
        KeyboardInterrupt: at the next pass or kernel after Ctrl-C.

    Warns:
        CompileWarning: an op has no native code and runs on the interpreter, and similar remarks.
    """
    options = {
        "shapes": _shapes(shapes),
        "variants": [",".join(_shapes(variant)) for variant in variants],
        "threads": threads,
        "target": target,
        "isa": isa,
        "precision": precision,
        "calibration": [os.fspath(path) for path in calibration],
        "backends": list(backends),
        "cpu_code": cpu_code,
        "pipeline": passes,
        "winograd": winograd,
        "keep_subnormals": keep_subnormals,
        "initializer_inputs": list(initializer_inputs),
        "folder": folder,
        "memory": memory,
        "time_limit": time_limit,
        "memory_limit": memory_limit,
        "tune": tune,
        "variables": _variables(variables),
        "require_native": require_native,
        "record_rewrites": record_rewrites,
        "mesh": mesh,
        "layouts": [f"{name}={layout}" for name, layout in layouts.items()] if isinstance(layouts, Mapping) else list(layouts),
    }
    plan, remarks = _compile(_source(model), options)
    for text, _ in remarks:
        _warnings.warn(text, CompileWarning, stacklevel=2)
    return plan


def _source(model: Any) -> Any:
    """The module, bytes or a path."""
    if isinstance(model, Module):
        return model
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if hasattr(model, "SerializeToString"):
        return model.SerializeToString()
    return os.fspath(model)


def _variables(variables: Union[Mapping[str, str], Iterable[str]]) -> list:
    """Variables as the command line takes them: ``present=past:zeros``."""
    if isinstance(variables, str):
        return [variables]
    if isinstance(variables, Mapping):
        return [f"{output}={input}" for output, input in variables.items()]
    return list(variables)


def _shapes(shapes: Optional[Shapes]) -> list:
    """Shapes as the command line takes them: ``batch=8``, ``x=1x3x224x224``."""
    if shapes is None:
        return []
    if isinstance(shapes, str):
        return [shapes]
    if not isinstance(shapes, Mapping):
        return list(shapes)
    text = lambda extents: str(extents) if isinstance(extents, int) else "x".join(str(extent) for extent in extents)
    return [f"{name}={text(extents)}" for name, extents in shapes.items()]

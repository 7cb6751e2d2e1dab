"""A graph of ATen ops as a module of the IR."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

from .. import Error, ir
from . import _dims
from ._table import TABLE
from ._unsupported import Unsupported

NAMES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
"""The element types that a graph may have."""


class Tensor:
    """A value of the IR with what torch knows of it."""

    __slots__ = ("value", "shape", "dtype")

    def __init__(self, value: ir.Value, fake: Any) -> None:
        self.value, self.shape, self.dtype = value, tuple(fake.shape), fake.dtype

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)


class Build:
    """Builds the module. An op that is not supported is an input of it, so that all of them are found.

    Args:
        gm: the graph.
        held: the inputs that are constants, by number.
    """

    def __init__(self, gm: torch.fx.GraphModule, held: Mapping[int, torch.Tensor]) -> None:
        self.gm = gm
        self.module = ir.Module("torch")
        self.main = self.module.function("main", location=("torch", 1))
        self.body = self.main.body
        self.failed: Dict[torch.fx.Node, str] = {}
        # Whether an op that failed reads memory in torch's layout, which results of plans do not have.
        self.needs_layout = False
        self.inputs: List[int] = []
        self.types: List[Tuple[torch.dtype, Sequence[Any]]] = []
        self.outputs: List[Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]] = []
        self.node: Optional[torch.fx.Node] = None
        self.location: Tuple[str, int, str] = ("", 0, "")
        self._values: Dict[torch.fx.Node, Any] = {}
        self._numbers: Dict[torch.fx.Node, int] = {}
        self._scalars: Dict[Tuple[Any, torch.dtype], ir.Value] = {}
        self._symbols: Dict[str, Tuple[ir.Value, int]] = {}
        self._sources: Dict[str, Callable[[Sequence[Any]], int]] = {}
        self._build(held)

    @property
    def is_empty(self) -> bool:
        """Whether no output is computed."""
        return not self.types

    def _build(self, held: Mapping[int, torch.Tensor]) -> None:
        for position, node in enumerate(self.gm.graph.nodes):
            self.node, self.location = node, (node.name, position, str(node.target))
            if node.op == "placeholder":
                self._placeholder(node, held)
            elif node.op == "output":
                self._output(node)
            elif node.op == "get_attr":
                self._attribute(node)
            elif node.op == "call_function" and is_number(node.meta.get("val")):
                # Extents are expressions of symbols.
                self._values[node] = node.meta["val"]
            else:
                self._call(node)

    def _placeholder(self, node: torch.fx.Node, held: Mapping[int, torch.Tensor]) -> None:
        number = len(self._numbers)
        self._numbers[node] = number
        fake = node.meta.get("val")
        if number in held:
            self._values[node] = Tensor(self.constant(held[number]), held[number])
        elif isinstance(fake, torch.Tensor):
            self._values[node] = self._input(node, f"x{number}")
            self.inputs.append(number)
            for axis, extent in enumerate(fake.shape):
                expr = _dims.expression(extent)
                if expr.is_Symbol:
                    self._sources.setdefault(expr.name, lambda args, n=number, a=axis: args[n].shape[a])
        else:
            self._values[node] = fake
            if isinstance(fake, torch.SymInt) and _dims.expression(fake).is_Symbol:
                self._sources[_dims.expression(fake).name] = lambda args, n=number: args[n]

    def _input(self, node: torch.fx.Node, name: str, fake: Any = None) -> Tensor:
        fake = node.meta["val"] if fake is None else fake
        why = unsupported_tensor(fake)
        if why:
            self.failed.setdefault(node, why)
            fake = torch.empty((), device="meta")
        value = self.main.input(name, ir.tensor(NAMES[fake.dtype], [_dims.number_or_text(e) for e in fake.shape]))
        for axis, extent in enumerate(fake.shape):
            expr = _dims.expression(extent)
            if expr.is_Symbol:
                self._symbols.setdefault(expr.name, (value, axis))
        return Tensor(value, fake)

    def _attribute(self, node: torch.fx.Node) -> None:
        found: Any = self.gm
        for name in node.target.split("."):
            found = getattr(found, name)
        if isinstance(found, torch.Tensor) and not unsupported_tensor(found):
            self._values[node] = Tensor(self.constant(found), found)
        else:
            self._values[node] = found

    def _call(self, node: torch.fx.Node) -> None:
        fake = node.meta.get("val")
        try:
            if node.op != "call_function":
                raise Unsupported(f"it is a {node.op}")
            if getattr(node.target, "__name__", "") == "getitem":
                self._values[node] = self.resolve(node.args[0])[node.args[1]]
                return
            builder = TABLE.get(str(node.target))
            if builder is None:
                raise Unsupported("the op has no row in the table")
            for tensor in tensors_of(fake):
                why = unsupported_tensor(tensor)
                if why:
                    raise Unsupported(why)
            args = [self.resolve(arg) for arg in node.args]
            keywords = {name: self.resolve(arg) for name, arg in node.kwargs.items()}
            self._values[node] = self.wrap(builder(self, *args, **keywords), fake)
        except (Unsupported, Error, NotImplementedError) as why:
            self.failed[node] = first_line(why)
            self._values[node] = self._stand_in(node, fake)

    def _stand_in(self, node: torch.fx.Node, fake: Any) -> Any:
        """Inputs in place of the results of an op that is not supported."""
        if isinstance(fake, torch.Tensor):
            return self._input(node, f"result {node.name}")
        if isinstance(fake, (tuple, list)):
            made = lambda i, f: self._input(node, f"result {node.name} {i}", f) if isinstance(f, torch.Tensor) else f
            return [made(i, f) for i, f in enumerate(fake)]
        return fake

    def _output(self, node: torch.fx.Node) -> None:
        given = node.args[0]
        named: Dict[str, ir.Value] = {}
        seen: Dict[ir.Value, int] = {}
        for output in given if isinstance(given, (tuple, list)) else [given]:
            value = self.resolve(output)
            if isinstance(output, torch.fx.Node) and output.op == "placeholder":
                self.outputs.append(lambda args, _, n=self._numbers[output]: args[n])
            elif isinstance(value, Tensor):
                number = seen.setdefault(value.value, len(named))
                if number == len(named):
                    named[f"y{number}"] = value.value
                    shape = [_dims.number_or_text(extent) for extent in output.meta["val"].shape]
                    self.types.append((value.dtype, shape))
                self.outputs.append(lambda _, values, n=number: values[n])
            elif isinstance(value, torch.SymInt):
                self.outputs.append(lambda args, _, expr=_dims.expression(value): self._evaluate(expr, args))
            else:
                self.outputs.append(lambda _, __, constant=value: constant)
        if not self.failed and named:
            self.main.returns(named, location=("output", 0, "output"))

    def _evaluate(self, expr: Any, args: Sequence[Any]) -> int:
        """The value of an expression of symbols in a run."""
        return int(expr.xreplace({s: self._integer(self._sources[s.name](args)) for s in expr.free_symbols}))

    @staticmethod
    def _integer(value: int) -> Any:
        return _dims.sympy.Integer(value)

    # ---- what builders use ----

    def resolve(self, arg: Any) -> Any:
        """An argument of a node: tensors for nodes, numbers, lists."""
        if isinstance(arg, torch.fx.Node):
            return self._values[arg]
        if isinstance(arg, (list, tuple)):
            return [self.resolve(item) for item in arg]
        return arg

    def wrap(self, made: Any, fake: Any) -> Any:
        """Values with what torch knows of them. Values that torch's types contradict are an error of the table."""
        if isinstance(made, (tuple, list)):
            return [None if m is None else self.wrap(m, f) for m, f in zip(made, fake)]
        value = made.value if isinstance(made, Tensor) else made
        if value.dtype != NAMES[fake.dtype]:
            raise Unsupported(f"the result would be {value.dtype}, and torch's is {NAMES[fake.dtype]}")
        if value.shape is None or len(value.shape) != len(fake.shape):
            raise Unsupported(f"the result would have type {value.type}")
        for mine, other in zip(value.shape, fake.shape):
            if isinstance(mine, int) and _dims.is_fixed(other) and mine != int(other):
                raise Unsupported(f"the result would have type {value.type}, and torch's extents are {list(fake.shape)}")
        return Tensor(value, fake)

    @property
    def result(self) -> Any:
        """What torch knows of the result of the node that is built."""
        return self.node.meta["val"]

    def op(self, name: str, *operands: Any, **attributes: Any) -> ir.Value:
        """Adds an op of one result."""
        return self.ops(name, *operands, **attributes)[0]

    def ops(self, name: str, *operands: Any, **attributes: Any) -> List[ir.Value]:
        """Adds an op; its results."""
        values = [operand.value if isinstance(operand, Tensor) else operand for operand in operands]
        return self.body.op(name, values, attributes, location=self.location).results

    def constant(self, tensor: torch.Tensor) -> ir.Value:
        """A constant that shares the memory of a tensor."""
        tensor = tensor.detach()
        return self.body.constant(torch._C._to_dlpack(tensor.contiguous()), location=self.location)

    def scalar(self, number: Any, dtype: torch.dtype) -> ir.Value:
        """A constant of rank 0."""
        if isinstance(number, (torch.SymInt, torch.SymFloat)):
            if _dims.is_fixed(number):
                number = int(number)
            else:
                return self.cast(self.reshape(self.extent(number), []), dtype)
        key = (repr(number), dtype)
        if key not in self._scalars:
            self._scalars[key] = self.constant(torch.tensor(number, dtype=dtype))
        return self._scalars[key]

    def cast(self, value: Any, dtype: torch.dtype) -> ir.Value:
        """The elements in another type; a number becomes a constant."""
        if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
            return self.scalar(value, dtype)
        value = value.value if isinstance(value, Tensor) else value
        return value if value.dtype == NAMES[dtype] else self.op("of.cast", value, to=NAMES[dtype])

    def extent(self, extent: Any) -> ir.Value:
        """An extent as a tensor of one i64."""
        return self._expression(_dims.expression(extent))

    def _expression(self, expr: Any) -> ir.Value:
        if expr.is_Integer:
            return self.body.constant(np.array([int(expr)]), location=self.location)
        if expr.is_Symbol:
            if expr.name not in self._symbols:
                raise Unsupported(f"{expr} is not an extent of an input")
            value, axis = self._symbols[expr.name]
            return self.op("of.shape", value, start=axis, end=axis + 1)
        parts = [self._expression(arg) for arg in expr.args]
        name = type(expr).__name__
        ops = {"FloorDiv": "of.div", "CleanDiv": "of.div", "Mod": "of.mod", "PythonMod": "of.mod"}
        ops.update({"Max": "of.max", "Min": "of.min"})
        op = "of.add" if expr.is_Add else "of.mul" if expr.is_Mul else ops.get(name)
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            op, parts = "of.mul", [parts[0]] * int(expr.exp)
        if op is None:
            raise Unsupported(f"an extent is {expr}")
        folded = parts[0]
        for part in parts[1:]:
            folded = self.op(op, folded, part)
        return folded

    def shape(self, extents: Sequence[Any]) -> Any:
        """Extents as an operand: a list of integers, or a tensor of i64."""
        if all(_dims.is_fixed(extent) for extent in extents):
            return np.array([int(extent) for extent in extents], dtype=np.int64)
        return self.op("of.concat", *[self.extent(extent) for extent in extents], axis=0)

    def reshape(self, value: Any, extents: Sequence[Any]) -> ir.Value:
        """The elements under other extents."""
        return self.op("of.reshape", value, self.shape(extents), allowzero=True)

    def reshaped_as_result(self, value: Any) -> ir.Value:
        """The elements under the extents of the node's result."""
        return self.reshape(value, self.result.shape)

    def vjp(self, forward: Callable[..., ir.Value], gradient: Any, *operands: Any) -> List[ir.Value]:
        """The gradients of operands of a function, from the gradient of its result.

        The operands are copied first, since the gradient may depend on them in the graph.
        """
        copies = [self.op("of.cast", operand, to=operand.value.dtype) for operand in operands]
        result = forward(*copies)
        product = self.op("of.mul", result, self.cast(gradient, _torch_dtype(result)))
        return self.ops("of.gradient", product, *copies)


def _torch_dtype(value: ir.Value) -> torch.dtype:
    return next(dtype for dtype, name in NAMES.items() if name == value.dtype)


def is_number(fake: Any) -> bool:
    """Whether a node's result is a number rather than a tensor."""
    return isinstance(fake, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def computes(node: torch.fx.Node) -> bool:
    """Whether a node computes tensors."""
    return node.op in ("call_function", "call_method", "call_module") and not is_number(node.meta.get("val"))


def tensors_of(fake: Any) -> List[Any]:
    """The tensors of a node's result."""
    if isinstance(fake, torch.Tensor):
        return [fake]
    return [t for item in fake for t in tensors_of(item)] if isinstance(fake, (list, tuple)) else []


def unsupported_tensor(fake: Any) -> Optional[str]:
    """Why a tensor cannot be a value of the IR."""
    if fake.device.type != "cpu":
        return f"a tensor is on {fake.device}"
    if fake.layout != torch.strided:
        return f"a tensor has layout {fake.layout}"
    if fake.dtype not in NAMES:
        return f"a tensor has elements of {fake.dtype}"
    if any(not isinstance(extent, (int, torch.SymInt)) for extent in fake.shape):
        return "a tensor has an extent that is no integer"
    return None


def first_line(why: BaseException) -> str:
    """The reason in one line."""
    if isinstance(why, Error) and why.diagnostics:
        return why.diagnostics[0].message
    return (str(why).splitlines() or [type(why).__name__])[0]

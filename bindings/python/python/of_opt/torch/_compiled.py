"""A graph of ATen ops that is compiled when it is called first: plans, and torch for what they lack."""

from __future__ import annotations

import time
import warnings
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import torch

from .. import CompileWarning, Error, Session
from .. import compile as compile_model
from ._build import Build, computes
from ._report import Graph, add

# A set of constants that changes more often is not constant.
_MAX_CHANGES = 3


class Compiled:
    """A compiled graph. It takes a list of inputs, which it empties, and returns the outputs."""

    def __init__(
        self, gm: torch.fx.GraphModule, kind: str, constants: frozenset, *, explain: bool, threads: int
    ) -> None:
        self.gm, self.kind, self.constants = gm, kind, constants
        self.explain, self.threads = explain, threads
        self.run: Optional[Callable[[Sequence[Any]], Any]] = None

    def __call__(self, args: List[Any]) -> Any:
        inputs = list(args)
        args.clear()
        if self.run is None:
            self.run = self._compile(inputs)
        return self.run(inputs)

    def _compile(self, inputs: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        start = time.perf_counter()
        record = Graph(self.kind, sum(computes(node) for node in self.gm.graph.nodes))
        whole = Program(self.gm, self.constants, record, self.threads)
        failed = whole.prepare(inputs)
        run: Callable[[Sequence[Any]], Any] = whole
        if failed:
            record.fallbacks.update({f"{node.name}: {node.target}": why for node, why in failed.items()})
            if whole.needs_layout:
                record.remarks.append("torch runs the whole graph, since an op of it depends on strides")
                run = lambda args: self.gm(*args)
            else:
                run = self._partitioned(failed, record, inputs)
        else:
            record.compiled, record.plans = record.ops, 1
        record.seconds = time.perf_counter() - start
        add(record, self.explain)
        return run

    def _partitioned(
        self, failed: Mapping[torch.fx.Node, str], record: Graph, inputs: Sequence[Any]
    ) -> Callable[[Sequence[Any]], Any]:
        """The graph with plans in it. The first run of each plan compiles it."""
        from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
        from torch.fx.passes.operator_support import create_op_support

        static = {node for i, node in enumerate(_placeholders(self.gm)) if i in self.constants}
        names = {node.name for node in static}
        is_supported = create_op_support(lambda _, node: computes(node) and node not in failed)
        partitioner = CapabilityBasedPartitioner(self.gm, is_supported, allows_single_node_partition=False)
        partitions = partitioner.propose_partitions()
        fused = partitioner.fuse_partitions(partitions, prefix="of_opt_")
        for node in fused.graph.nodes:
            if node.op != "call_module" or not node.target.startswith("of_opt_"):
                continue
            inner = fused.get_submodule(node.target)
            constants = frozenset(i for i, arg in enumerate(node.args) if arg.op == "placeholder" and arg.name in names)
            record.plans += 1
            record.compiled += sum(computes(op) for op in inner.graph.nodes)
            setattr(fused, node.target, Partition(inner, constants, record, self.threads))
        fused.recompile()
        return lambda args: fused(*args)


class Partition(torch.nn.Module):
    """A part of a graph as a module: a plan, or torch if it cannot be compiled."""

    def __init__(self, gm: torch.fx.GraphModule, constants: frozenset, record: Graph, threads: int) -> None:
        super().__init__()
        # Not a submodule: it is run by torch only if it cannot be compiled.
        self.__dict__["program"] = Program(gm, constants, record, threads)
        outputs = next(node for node in gm.graph.nodes if node.op == "output").args[0]
        self.single = isinstance(outputs, torch.fx.Node)

    def forward(self, *args: Any) -> Any:
        program = self.__dict__["program"]
        if program.build is None and not program.failed:
            failed = program.prepare(args)
            program.record.fallbacks.update({f"{n.name}: {n.target}": why for n, why in failed.items()})
        results = program(args)
        return results[0] if self.single and isinstance(results, (list, tuple)) else results


class Program:
    """A graph as one plan, compiled again when its constants change."""

    def __init__(self, gm: torch.fx.GraphModule, constants: frozenset, record: Graph, threads: int) -> None:
        self.gm, self.constants, self.record = gm, constants, record
        self.threads, self.changes = threads, 0
        self.build: Optional[Build] = None
        self.failed: Mapping[torch.fx.Node, str] = {}
        self.needs_layout = False

    def prepare(self, args: Sequence[Any]) -> Mapping[torch.fx.Node, str]:
        """Builds the IR and compiles it. Returns the ops that cannot be compiled, with reasons."""
        held = {i: args[i] for i in self.constants if isinstance(args[i], torch.Tensor)}
        build = Build(self.gm, held)
        self.failed, self.needs_layout = build.failed, build.needs_layout
        if self.failed:
            return self.failed
        self.outputs = build.outputs
        if build.is_empty:
            self.session = None
        else:
            try:
                self._compile(build)
            except Error as error:
                node = next(node for node in self.gm.graph.nodes if node.op == "output")
                self.failed = {node: f"the graph does not compile: {error}"}
                return self.failed
        self.inputs = build.inputs
        self.held = [(i, tensor, _version(tensor)) for i, tensor in held.items()]
        self.record.constants += len(held)
        self.build = build
        return {}

    def _compile(self, build: Build) -> None:
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always")
            plan = compile_model(build.module, threads=self.threads or torch.get_num_threads())
        for remark in remarks:
            if issubclass(remark.category, CompileWarning):
                self.record.remarks.append(str(remark.message))
            else:
                warnings.warn_explicit(remark.message, remark.category, remark.filename, remark.lineno)
        self.session = Session(plan, threads=self.threads or torch.get_num_threads())
        self.made = _Outputs(build.types)

    def __call__(self, args: Sequence[Any]) -> Any:
        if self.failed:
            return self.gm(*args)
        for i, tensor, version in self.held:
            if args[i] is not tensor or (version is not None and tensor._version != version):
                return self._changed(args)
        values: List[torch.Tensor] = []
        if self.session is not None:
            capsules = [_to_dlpack(_row_major(args[i])) for i in self.inputs]
            values = self.made.run(self.session, capsules)
        return [output(args, values) for output in self.outputs]

    def _changed(self, args: Sequence[Any]) -> Any:
        """Compiles again for other constants; tensors that keep changing become inputs."""
        self.changes += 1
        if self.changes >= _MAX_CHANGES:
            changed = {i for i, tensor, version in self.held if args[i] is not tensor or _version(tensor) != version}
            self.constants -= changed
            self.record.remarks.append(f"{len(changed)} parameters keep changing and are inputs now")
        else:
            self.record.remarks.append("parameters changed, so the graph was compiled again")
        if self.prepare(args):
            return self.gm(*args)
        return self(args)


class _Outputs:
    """Room for results: tensors of torch for fixed extents, tensors of the run for open ones."""

    def __init__(self, types: Sequence[Tuple[torch.dtype, Sequence[Any]]]) -> None:
        fixed = lambda shape: all(type(extent) is int for extent in shape)
        self.rooms = [(tuple(shape), dtype) if fixed(shape) else None for dtype, shape in types]

    def run(self, session: Session, capsules: List[Any]) -> List[torch.Tensor]:
        tensors = [None if room is None else torch.empty(room[0], dtype=room[1]) for room in self.rooms]
        rooms = [None if tensor is None else _to_dlpack(tensor) for tensor in tensors]
        made = session.run_capsules(capsules, rooms)
        return [_from_dlpack(m) if tensor is None else tensor for tensor, m in zip(tensors, made)]


_to_dlpack = torch._C._to_dlpack
_from_dlpack = torch._C._from_dlpack


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _version(tensor: torch.Tensor) -> Optional[int]:
    """The number of changes in place; None for a tensor of the inference mode, which does not count them."""
    return None if tensor.is_inference() else tensor._version


def _placeholders(gm: torch.fx.GraphModule) -> List[torch.fx.Node]:
    return [node for node in gm.graph.nodes if node.op == "placeholder"]

"""What became of the graphs that torch.compile handed over."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Dict, List

log = logging.getLogger("of_opt.torch")


@dataclass
class Graph:
    """One graph of ATen ops."""

    kind: str
    """"inference", "forward" or "backward"."""
    ops: int
    """Ops of the graph that compute something."""
    compiled: int = 0
    """Those in plans."""
    plans: int = 0
    """Plans that the graph became."""
    constants: int = 0
    """Parameters that are constants of the plans."""
    fallbacks: Dict[str, str] = field(default_factory=dict)
    """Ops that are torch's, as "node: operator", with the reason."""
    remarks: List[str] = field(default_factory=list)
    """Ops of the plans that run on the interpreter, and changes of parameters."""
    seconds: float = 0.0
    """The time that building and compiling took."""

    def __str__(self) -> str:
        lines = [
            f"{self.kind}: {self.compiled} of {self.ops} ops in {self.plans} plans, "
            f"{self.constants} constants, {self.seconds:.2f} s"
        ]
        lines += [f"  torch runs {op}: {why}" for op, why in self.fallbacks.items()]
        lines += [f"  {remark}" for remark in self.remarks]
        return "\n".join(lines)


@dataclass
class Report:
    """All graphs of this process, the oldest first."""

    graphs: List[Graph] = field(default_factory=list)

    @property
    def fallbacks(self) -> Dict[str, str]:
        """The ops that are torch's, of all graphs, with the reasons."""
        return {op: why for graph in self.graphs for op, why in graph.fallbacks.items()}

    def __str__(self) -> str:
        return "\n".join(str(graph) for graph in self.graphs) or "no graph was compiled"


_graphs: List[Graph] = []


def report(*, reset: bool = False) -> Report:
    """What became of the graphs so far.

    Args:
        reset: whether to forget them afterwards.
    """
    made = Report(list(_graphs))
    if reset:
        _graphs.clear()
    return made


def add(graph: Graph, explain: bool) -> None:
    """Records a graph. ``explain`` prints it; otherwise the logger "of_opt.torch" has it."""
    _graphs.append(graph)
    log.info("%s", graph)
    if explain:
        print(graph)

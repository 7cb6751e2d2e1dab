"""The backend: from a graph of Dynamo to compiled functions, by AOT Autograd."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

from .. import InputError
from ._compiled import Compiled
from ._table import TABLE

_OPTIONS = {"explain": False, "freeze": True, "threads": 0}


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Optional[Mapping[str, Any]] = None,
    mode: Optional[str] = None,
) -> Any:
    """Compiles a graph of Dynamo. ``torch.compile`` calls it.

    Args:
        gm: the graph.
        example_inputs: its inputs.
        options: "explain" prints what becomes of each graph; "freeze" makes parameters constants where no gradient is needed, true
            by default; "threads" is the number of workers, 0 takes torch's.
        mode: None or "default".
    """
    from torch._dynamo.backends.common import aot_autograd

    given = dict(options or {})
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise InputError(f"backend 'of_opt' has no option {', '.join(unknown)}; it has {', '.join(_OPTIONS)}")
    if mode not in (None, "default"):
        raise InputError(f"backend 'of_opt' has no mode '{mode}'; give options instead")
    settings = {**_OPTIONS, **given}
    compilers = {kind: _compiler(kind, settings) for kind in ("forward", "backward", "inference")}
    aot = aot_autograd(
        fw_compiler=compilers["forward"],
        bw_compiler=compilers["backward"],
        inference_compiler=compilers["inference"],
        decompositions=dict(decompositions()),
    )
    return aot(gm, example_inputs)


def _compiler(kind: str, settings: Mapping[str, Any]) -> Any:
    def compile_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        del example_inputs
        constants = _constants() if kind == "inference" and settings["freeze"] else frozenset()
        compiled = Compiled(gm, kind, constants, explain=settings["explain"], threads=settings["threads"])

        # A function, because Dynamo wraps that of the backward pass and keeps the attributes of functions alone.
        def run(args: List[Any]) -> Any:
            return compiled(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return compile_graph


def _constants() -> frozenset:
    """The numbers of the inputs that are parameters and buffers, but for those that the graph modifies."""
    context = torch._guards.TracingContext.try_get()
    metadata = context and context.fw_metadata
    if not metadata:
        return frozenset()
    mutated = {i for i, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata}
    return frozenset(metadata.static_input_indices) - mutated


@functools.lru_cache(maxsize=None)
def decompositions() -> Dict[Any, Any]:
    """The decompositions to core ATen ops, without those of ops that the table has."""
    from torch._decomp import core_aten_decompositions

    return {op: rule for op, rule in core_aten_decompositions().items() if str(op) not in TABLE}

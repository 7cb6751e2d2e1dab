"""A backend for ``torch.compile``: ``torch.compile(model, backend="of_opt")``.

AOT Autograd gives graphs of ATen ops, for the forward and the backward pass. Ops of the table (:mod:`of_opt.torch._table`) become IR,
which is compiled to a plan; ops that it lacks are torch's, and :func:`report` says which and why. Extents that torch leaves open are
symbols, so that one plan serves all sizes. Tensors pass by DLPack without a copy.

>>> model = torch.compile(model, backend="of_opt")
>>> with torch.no_grad():
...     model(x)
>>> print(of_opt.torch.report())

**Parameters** are inputs of a graph that is differentiated. Without gradients (``torch.no_grad()``, or parameters that require none)
they are constants of the plan, packed for its kernels. A tensor that is replaced or modified in place afterwards makes the next call
compile again. Two kinds of changes are not seen: writes to ``parameter.data``, and writes to tensors made under
``torch.inference_mode()``. Call ``torch._dynamo.reset()`` after these. ``options={"freeze": False}`` makes parameters inputs always.
"""

from __future__ import annotations

from ._backend import backend
from ._report import Graph, Report, report

__all__ = ["Graph", "Report", "backend", "report"]

"""Writes the programs of this folder: `python3 write.py` with jax and flax of the versions in xtask/src/python.rs.

A program has the inputs of a function of `jax_programs.py` as constants, behind a barrier so that they are not known at import. Its
results are those of the function, and behind them those that JAX computed, as constants.
"""

import pathlib
import sys

import jax
import numpy as np

here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here.parents[2] / "bindings/python/tests"))

from jax_programs import PROGRAMS  # noqa: E402


def main() -> None:
    for name, (function, arguments) in PROGRAMS.items():
        leaves, tree = jax.tree.flatten(arguments)
        want = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arguments))]

        def program(leaves=leaves, tree=tree, function=function, want=want):
            given = jax.tree.unflatten(tree, jax.lax.optimization_barrier([jax.numpy.asarray(a) for a in leaves]))
            return jax.tree.leaves(function(*given)), want

        (here / f"{name}.mlir").write_text(jax.jit(program).lower().as_text())


if __name__ == "__main__":
    main()

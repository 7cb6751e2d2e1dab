"""Options of sessions and runs, with onnxruntime's names and defaults."""

from __future__ import annotations

import contextlib
import enum
from typing import Any, Dict, Iterator, List


class GraphOptimizationLevel(enum.IntEnum):
    """How much a graph is optimized. Every level gives the same plan here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Whether ops run in parallel. Plans decide that themselves."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """The order of ops. Plans decide that themselves."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class SessionOptions:
    """How a session is made.

    ``intra_op_num_threads`` and free dimension overrides have an effect. Options that tune onnxruntime itself (arenas, levels of
    optimization, logs) are kept and have none. ``enable_profiling``, ``optimized_model_filepath`` and custom operator libraries
    are refused when the session is made.
    """

    def __init__(self) -> None:
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = 0
        self.intra_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self._entries: Dict[str, str] = {}
        self._dimensions: Dict[str, int] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was added."""
        if key not in self._entries:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """A number for an open dimension of the model."""
        self._dimensions[name] = value

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Not supported: models' denotations are not read."""
        raise NotImplementedError("dimensions are overridden by name: add_free_dimension_override_by_name")

    def register_custom_ops_library(self, path: str) -> None:
        """Not supported: onnxruntime's libraries of operators have another interface."""
        raise NotImplementedError(f"'{path}' has operators for onnxruntime; of_opt loads libraries of its own interface")

    def add_initializer(self, name: str, value: Any) -> None:
        """Not supported: weights are part of the plan."""
        raise NotImplementedError(f"initializer '{name}': give it to the run as an input, or store it in the model")


class RunOptions:
    """How a run is made. ``terminate`` ends the runs that have these options; the others have no effect."""

    def __init__(self) -> None:
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self._terminate = False
        self._running: List[Any] = []
        self._entries: Dict[str, str] = {}

    @property
    def terminate(self) -> bool:
        """Whether runs with these options end."""
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._terminate = bool(value)
        if self._terminate:
            for session in list(self._running):
                session.cancel()

    @contextlib.contextmanager
    def _during(self, session: Any) -> Iterator[None]:
        """While a session runs with these options, ``terminate`` ends its runs."""
        self._running.append(session)
        try:
            yield
        finally:
            self._running.remove(session)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added."""
        return self._entries[key]

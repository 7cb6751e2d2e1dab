import os
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np

__version__: str

class Port:
    """An input or output of a plan."""

    @property
    def name(self) -> str:
        """The name in the model."""
    @property
    def dtype(self) -> str:
        """The name of the dtype: "float32", "bfloat16", "bool", "str" for text, "object" for a sequence or an optional value."""
    @property
    def shape(self) -> Optional[Tuple[Union[int, str, None], ...]]:
        """The extents: numbers, text such as "N" or "2*N + 1" for an open extent, None for one without a name. None if the rank
        is open."""
    @property
    def type_text(self) -> str:
        """The type for people, such as "f32[N, 3, 224, 224]"."""

class Plan:
    """A compiled model: machine code, weights and memory layout. :func:`of_opt.compile` makes one."""

    @staticmethod
    def load(source: Union[str, "os.PathLike[str]", bytes]) -> Plan:
        """Opens a plan: a file, which is mapped into memory, or bytes, which are copied.

        Raises:
            FileError: the file cannot be read.
            PlanError: it is no plan, damaged, or of another version.
        """
    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the plan to a file, which appears whole or not at all.

        Raises:
            FileError: the file cannot be written.
        """
    def to_bytes(self) -> bytes:
        """The bytes of the plan, as :meth:`save` writes them."""
    def inspect(self, *, json: bool = False) -> str:
        """What is in the plan: the text of ``of-opt inspect``, or its JSON."""
    def verify(self) -> None:
        """Proves that the plan cannot deadlock and that its memory is sound.

        Raises:
            PlanError: it can, or is not.
        """
    @property
    def model(self) -> str:
        """The name of the model."""
    @property
    def inputs(self) -> List[Port]:
        """The inputs, in the order of the model."""
    @property
    def outputs(self) -> List[Port]:
        """The outputs, in the order of the model."""

class Session:
    """Executes a plan any number of times.

    Runs release Python's lock. Sessions run in parallel; runs of one session wait for each other. Ctrl-C ends a run in the main
    thread before its next task.

    Args:
        plan: the plan. Sessions share its code and weights.
        threads: workers, the calling thread included; 0 takes as many as the plan was compiled for.
        memory: the most bytes that values may take; None is this machine's memory.

    Raises:
        UnsupportedError: this machine cannot execute the plan.
        LimitError: the values take more memory than they may.
    """

    def __init__(self, plan: Plan, *, threads: int = 0, memory: Optional[int] = None) -> None: ...
    def run(
        self, inputs: Mapping[str, Any], outputs: Optional[Mapping[str, np.ndarray]] = None
    ) -> Dict[str, Any]:
        """Runs the plan.

        Args:
            inputs: the value of each input: an array of the exact dtype, a tensor of another library with DLPack, or numbers and
                lists, which are converted. Text is an array of str; a sequence is a list; an absent optional value is None. Row-major
                arrays are read without a copy; an input of fixed shape is copied once, into the memory of the plan.
            outputs: arrays to write results to, for any of the outputs.

        Returns:
            The outputs by name: arrays, lists for sequences, None for absent optional values. The run writes results of fixed
            shapes to the arrays; larger results of open shapes are memory of the run that the array owns.

        Raises:
            InputError: an input is missing, unknown, or of another type or shape.
            RunError: a task failed; the message names the op.
            CancelledError: :meth:`cancel` ended the run.
        """
    def run_list(
        self, inputs: Mapping[str, Any], outputs: Optional[Mapping[str, np.ndarray]] = None
    ) -> List[Any]:
        """As :meth:`run`; returns the outputs in the order of the model."""
    def cancel(self) -> None:
        """Ends the runs of this session that are in progress, from another thread."""

def compile(
    path: Optional[str], bytes: Optional[bytes], options: Dict[str, Any]
) -> Tuple[Plan, List[Tuple[str, tuple]]]: ...
def model_info(path: Optional[str], bytes: Optional[bytes]) -> Dict[str, Any]: ...

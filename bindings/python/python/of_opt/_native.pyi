import os
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

__version__: str

class Port:
    """An input, output or variable of a plan."""

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
    def load(
        source: Union[str, "os.PathLike[str]", bytes],
        *,
        require_signature: Optional[Union[str, "os.PathLike[str]"]] = None,
        signature: Optional[Union[str, "os.PathLike[str]"]] = None,
    ) -> Plan:
        """Opens a plan: a file, which is mapped into memory, or bytes, which are copied.

        Args:
            source: the file, or the bytes.
            require_signature: a file with a public key in PEM. The plan is opened only if the holder of this key signed it (``of-opt sign``).
                The file is read into memory, and the signature is checked before the plan is decoded.
            signature: the file of the signature; None takes that of the plan with ".sig" behind its name.

        Raises:
            FileError: the file cannot be read.
            PlanError: it is no plan, damaged, of another version, or its signature is refused.
            InputError: there is no such key, or a signature without a key.
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
    @property
    def variables(self) -> List[Port]:
        """The variables, whose values a session keeps between runs."""

class Session:
    """Executes a plan any number of times.

    Runs release Python's lock. Sessions run in parallel; runs of one session wait for each other. Ctrl-C ends a run in the main
    thread before its next task. It and :meth:`cancel` end ranks that are processes, whose session cannot run again.

    Args:
        plan: the plan. Sessions share its code and weights.
        threads: workers, the calling thread included; 0 takes as many as the plan was compiled for.
        memory: the most bytes that values may take; None is this machine's memory.
        variables: those of another session of the same plan, which both sessions then share: their runs follow one another. Without it
            the session has its own.
        ranks: run the ranks of a plan for a mesh as so many processes, rather than as threads. This process is the first rank and starts
            the others, which end with the session. Where mpirun, srun or torchrun started this program once for each rank, the
            processes join one another, and all of them make the same calls in the same order.
        entry_point: the name of the entry point of a plan for a mesh, of which ``variants`` make several: the variant, such as ``N=8``. None is
            the first one.
        join_timeout: how long ranks that are processes wait for one another in the beginning, in seconds.
        peer_timeout: after how many seconds a silent rank counts as lost.
        tls: encrypt connections over TCP between ranks that are processes, with a key that follows from the job's token. Where a launcher
            started the processes, the token is the environment variable OF_JOB_TOKEN.

    Raises:
        InputError: the variables are those of another plan, or the plan is for another number of ranks or has no such entry point.
        UnsupportedError: this machine cannot execute the plan.
        LimitError: the values take more memory than they may.
        RunError: a rank does not start.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        threads: int = 0,
        memory: Optional[int] = None,
        variables: Optional[Variables] = None,
        ranks: Optional[int] = None,
        entry_point: Optional[str] = None,
        join_timeout: float = 60.0,
        peer_timeout: float = 10.0,
        tls: bool = False,
    ) -> None: ...
    def run(
        self, inputs: Dict[str, Any], outputs: Optional[Dict[str, np.ndarray]] = None
    ) -> Dict[str, Any]:
        """Runs the plan.

        Args:
            inputs: the value of each input: an array of the exact dtype, a tensor of another library with DLPack, or numbers and
                lists, which are converted. Text is an array of str; a sequence is a list; an absent optional value is None. Row-major
                arrays are read without a copy; an input of fixed shape is copied once, into the memory of the plan.
            outputs: arrays to write results to, for any of the outputs. They overlap no input.

        Returns:
            The outputs by name: arrays, lists for sequences, None for absent optional values. The run writes results of fixed
            shapes to the arrays; larger results of open shapes are memory of the run that the array owns.

        Raises:
            InputError: an input is missing, unknown, or of another type or shape.
            RunError: a task failed; the message names the op.
            CancelledError: :meth:`cancel` ended the run.
        """
    def run_list(
        self, inputs: Dict[str, Any], outputs: Optional[Dict[str, np.ndarray]] = None
    ) -> List[Any]:
        """As :meth:`run`; returns the outputs in the order of the model."""
    def run_capsules(self, inputs: List[Any], outputs: List[Any]) -> List[Any]:
        """As :meth:`run_list`, for tensors of other libraries as DLPack capsules.

        Args:
            inputs: a capsule for each input, in the order of the model. It is not consumed.
            outputs: for each output a capsule of a tensor that the run writes to, or None for a tensor that the run makes.

        Returns:
            For each output None, or the capsule of what the run made.
        """
    @property
    def variables(self) -> Variables:
        """The values that stay in the session between runs, by name; empty if the plan has no variables."""
    def cancel(self) -> None:
        """Ends the runs of this session that are in progress, from another thread."""

class Variables:
    """The variables of a session: a mapping from names to current values.

    A run that is under way ends before a value is read or set. After a run that failed while it updated variables, their values are
    lost: reading them is an error until they are set again or reset.
    """

    def __getitem__(self, name: str) -> np.ndarray:
        """A copy of the current value.

        Raises:
            KeyError: there is no such variable.
            InputError: it has no value yet.
        """
    def __setitem__(self, name: str, value: Any) -> None:
        """Sets the value, which is copied: an array of the exact dtype and shape, or numbers and lists, which are converted.

        Raises:
            KeyError: there is no such variable.
            InputError: the value has another dtype or shape.
        """
    def __contains__(self, name: object) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def keys(self) -> List[str]:
        """The names."""
    def items(self) -> List[Tuple[str, np.ndarray]]:
        """Names and copies of the current values.

        Raises:
            InputError: one has no value yet.
        """
    def reset(self) -> None:
        """Gives every variable its value in a new session; those without one have none afterwards."""

class Module:
    """A module of the IR: functions under their names. Constants share memory with the arrays that they were made from."""

    def __init__(self, name: str = "") -> None: ...
    @staticmethod
    def parse(
        text: str, *, file: str = "<text>", folder: Optional[Union[str, "os.PathLike[str]"]] = None
    ) -> Module:
        """Reads IR text or a StableHLO module, without verification.

        Args:
            text: the text.
            file: the name of the text in errors.
            folder: where its data files are.

        Raises:
            ModelError: the text is wrong.
        """
    @staticmethod
    def parse_stablehlo(text: str, *, file: str = "<text>", constants: Dict[int, Any] = ...) -> Module:
        """Reads a StableHLO module.

        Args:
            text: the text, as ``jax.jit(f).lower(…).as_text()`` gives it.
            file: the name of the text in errors.
            constants: arrays for arguments, by number: they are constants instead of inputs. They share the memory of row-major
                arrays, which must not change afterwards.

        Raises:
            ModelError: the text is wrong.
            UnsupportedError: it has operations that are not supported; all are listed.
            InputError: an array does not fit its argument.
        """
    @staticmethod
    def load(path: Union[str, "os.PathLike[str]"]) -> Module:
        """Reads a file: an ONNX model or IR text.

        Raises:
            FileError: the file cannot be read.
            ModelError: it is damaged.
        """
    @property
    def name(self) -> str:
        """The name of the model."""
    @property
    def functions(self) -> Dict[str, Function]:
        """The functions by name."""
    @property
    def main(self) -> Function:
        """The entry function: "main", or the only one.

        Raises:
            InputError: there is none.
        """
    def function(self, name: str = "main", *, location: Any = None) -> Function:
        """Adds a function without inputs and ops.

        Raises:
            InputError: there is one of that name.
        """
    def verify(self) -> None:
        """Checks structure, types, and each op against its declaration.

        Raises:
            ModelError: something is wrong; all is listed.
        """
    def run(self, pipeline: str) -> List[Tuple[str, float, int]]:
        """Verifies the module and runs passes and pipelines, such as "simplify,cse". Handles from before are refused afterwards.

        Returns:
            For each pass its name, its seconds, and the number of ops afterwards.

        Raises:
            InputError: the text names no pass, or an option is wrong.
            ModelError: the module does not verify, or a pass fails.
        """
    def to_text(self, *, generic: bool = False, locations: bool = False, elide: bool = False) -> str:
        """The text, which :meth:`parse` reads. ``str(module)`` leaves out the elements of large constants.

        Args:
            generic: the form that upstream MLIR reads.
            locations: with the location of each op.
            elide: without the elements of large constants; such text does not parse.
        """

class Function:
    """A function: named inputs and outputs, and a body."""

    @property
    def name(self) -> str:
        """The name."""
    @property
    def inputs(self) -> List[str]:
        """The names of the inputs, which are the arguments of the body."""
    @property
    def outputs(self) -> List[str]:
        """The names of the outputs; empty until :meth:`returns`."""
    @property
    def body(self) -> Region:
        """The body, to which ops are added."""
    def walk(self) -> List[Op]:
        """All ops with those in regions, each op before those in its regions."""
    def input(self, name: str, type: str) -> Value:
        """Adds an input.

        Args:
            name: its name.
            type: its type as text, such as that of :func:`of_opt.ir.tensor`.
        """
    def returns(self, outputs: Dict[str, Value], *, location: Any = None) -> None:
        """Ends the function with these outputs, in this order."""

class Region:
    """One block of ops: the body of a function, or a region of an op."""

    @property
    def arguments(self) -> List[Value]:
        """The arguments."""
    @property
    def ops(self) -> List[Op]:
        """The ops of this block, in order, without those in their regions."""
    def op(
        self,
        name: str,
        operands: List[Any] = ...,
        attributes: Optional[Dict[str, Any]] = None,
        *,
        regions: List[Region] = ...,
        location: Any = None,
    ) -> Op:
        """Adds an op at the end. Inference gives its result types.

        Args:
            name: the full name, such as "of.matmul".
            operands: values; None for one that is left out; arrays, integers and lists of integers become constants.
            attributes: by name. None leaves one out.
            regions: regions made by :meth:`region`, complete with their terminator "of.yield".
            location: (file, line), (file, line, column), or a node of another graph as (name, index, operator). Without it the line
                of the caller.

        Raises:
            InputError: there is no such op or attribute.
            ModelError: operands or attributes do not fit.
        """
    def constant(self, value: Any, *, location: Any = None) -> Value:
        """Adds a constant. It shares the memory of a row-major array or tensor, which must not change afterwards."""
    def region(self, types: List[str] = ...) -> Region:
        """A new region with arguments of these types, for an op of the same function."""

class Op:
    """An op of a function. Handles of one op are equal."""

    @property
    def name(self) -> str:
        """The full name, such as "of.matmul"."""
    @property
    def operands(self) -> List[Optional[Value]]:
        """The operands; None for one that is left out."""
    @property
    def results(self) -> List[Value]:
        """The results."""
    @property
    def result(self) -> Value:
        """The only result.

        Raises:
            InputError: there are none or several.
        """
    @property
    def attributes(self) -> Dict[str, Any]:
        """The attributes: numbers, text, lists, arrays for constants, and names for element types."""
    @property
    def regions(self) -> List[Region]:
        """The regions."""
    @property
    def location(self) -> Optional[str]:
        """Where it comes from; None if nothing is known."""

class Value:
    """A result of an op, or an argument of a region. Handles of one value are equal."""

    @property
    def type(self) -> str:
        """The type as text, such as "tensor<?(N)x4xf32>"."""
    @property
    def dtype(self) -> Optional[str]:
        """The name of the dtype; None if it is no tensor."""
    @property
    def shape(self) -> Optional[Tuple[Union[int, str, None], ...]]:
        """The extents: numbers, and text such as "N" or "N*2 + 1". None if it is no tensor, or its rank is unknown."""
    @property
    def name(self) -> Optional[str]:
        """The name in the text; None if it has a number there."""
    @property
    def op(self) -> Optional[Op]:
        """The op whose result it is; None for an argument."""
    @property
    def uses(self) -> List[Tuple[Op, int]]:
        """The ops that read it, each with the number of the operand."""

def serve_rank() -> None:
    """Serves a rank of a session of another process, which started this one."""

def tensor_type(dtype: str, shape: Optional[List[Union[int, str, None]]]) -> str: ...
def compile(model: Any, options: Dict[str, Any]) -> Tuple[Plan, List[Tuple[str, tuple]]]: ...
def model_info(path: Optional[str], bytes: Optional[bytes]) -> Dict[str, Any]: ...

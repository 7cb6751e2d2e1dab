"""Inference sessions with onnxruntime's interface."""

from __future__ import annotations

import os
import warnings
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence

import numpy as np

from .. import Error, InputError, Session, compile
from .. import CancelledError
from .._native import model_info
from ._options import RunOptions, SessionOptions
from ._values import IOBinding, ModelMetadata, NodeArg, OrtValue, dtype_name, type_text
from .capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NoSuchFile, of_error

_PROVIDERS = ["CPUExecutionProvider"]


def get_available_providers() -> List[str]:
    """The execution providers: the CPU."""
    return list(_PROVIDERS)


class InferenceSession:
    """A model that is ready to run.

    Args:
        path_or_bytes: a path to an ONNX file, its bytes, or an ``onnx.ModelProto``.
        sess_options: see :class:`SessionOptions`.
        providers: names, or pairs of name and options. All but "CPUExecutionProvider" are skipped with a warning.
        provider_options: no effect.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph, NotImplemented, Fail: as onnxruntime does; the text says what is wrong.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Optional[SessionOptions] = None,
        providers: Optional[Sequence[Any]] = None,
        provider_options: Optional[Sequence[dict]] = None,
        **kwargs: Any,
    ) -> None:
        self._options = sess_options or SessionOptions()
        self._refuse_options()
        self.set_providers(providers, provider_options)
        if hasattr(path_or_bytes, "SerializeToString"):
            path_or_bytes = path_or_bytes.SerializeToString()
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            self._model: Any = bytes(path_or_bytes)
            path, data = None, self._model
        elif isinstance(path_or_bytes, (str, os.PathLike)):
            self._model = os.fspath(path_or_bytes)
            path, data = self._model, None
            if not os.path.exists(path):
                raise NoSuchFile.of(f"Load model from {path} failed:Load model {path} failed. File doesn't exist")
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        # A session for each set of initializers that runs give values for.
        self._sessions: Dict[FrozenSet[str], Session] = {}
        try:
            self._info = model_info(path, data)
            session = self._session(frozenset())
        except Error as error:
            raise of_error(error) from error
        self._meta = ModelMetadata(self._info)
        self._inputs = self._declared("inputs", self._plan.inputs)
        self._outputs = self._declared("outputs", self._plan.outputs)
        # What every run needs to know of them.
        self._input_names = {arg.name for arg in self._inputs}
        self._needed_inputs = [arg.name for arg in self._inputs if not arg.type.startswith("optional")]
        self._output_names = [arg.name for arg in self._outputs]
        self._has_maps = any("map(" in arg.type for arg in self._inputs + self._outputs)

    def _refuse_options(self) -> None:
        options = self._options
        if options.enable_profiling:
            raise NotImplementedError("profiling: use the command line, 'of-opt profile MODEL'")
        if options.optimized_model_filepath:
            raise NotImplementedError("an optimized model: use the command line, 'of-opt export MODEL -o OUT.onnx --passes=simplify'")

    def _session(self, initializers: FrozenSet[str]) -> Session:
        """The session for runs that give these initializers."""
        if initializers not in self._sessions:
            with warnings.catch_warnings():
                # onnxruntime is silent about what it executes how.
                warnings.simplefilter("ignore")
                plan = compile(
                    self._model,
                    shapes=self._options._dimensions,
                    threads=max(self._options.intra_op_num_threads, 0),
                    initializer_inputs=sorted(initializers),
                )
            if not initializers:
                self._plan = plan
            self._sessions[initializers] = Session(plan)
        return self._sessions[initializers]

    def _declared(self, kind: str, ports: Sequence[Any]) -> List[NodeArg]:
        """Inputs or outputs as the model declares them; the plan has what is not declared."""
        by_name = {port.name: port for port in ports}
        args = []
        for name, declared, shape in self._info[kind]:
            port = by_name.get(name)
            if not declared and port is not None:
                declared = type_text(port.dtype)
            if shape is None and port is not None and declared.startswith("tensor"):
                shape = port.shape
            elif shape is not None:
                shape = [self._options._dimensions.get(extent, extent) for extent in shape]
            args.append(NodeArg(name, declared, shape))
        return args

    # ---- what the model is ----

    def get_inputs(self) -> List[NodeArg]:
        """The inputs, without those that have a value in the model."""
        return self._inputs

    def get_outputs(self) -> List[NodeArg]:
        """The outputs."""
        return self._outputs

    def get_overridable_initializers(self) -> List[NodeArg]:
        """The inputs that have a value in the model."""
        return [NodeArg(name, "", None) for name in self._info["overridable"]]

    def get_modelmeta(self) -> ModelMetadata:
        """The metadata."""
        return self._meta

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    def get_providers(self) -> List[str]:
        """The execution providers: the CPU."""
        return list(_PROVIDERS)

    def get_provider_options(self) -> Dict[str, dict]:
        """The options of the execution providers."""
        return {name: {} for name in _PROVIDERS}

    def set_providers(self, providers: Optional[Sequence[Any]] = None, provider_options: Any = None) -> None:
        """Checks names of providers; the CPU executes everything."""
        for provider in providers or ():
            name = provider if isinstance(provider, str) else provider[0]
            if name not in _PROVIDERS:
                text = f"Specified provider '{name}' is not in available provider names."
                warnings.warn(f"{text} Available providers: '{', '.join(_PROVIDERS)}'", UserWarning, stacklevel=3)

    def enable_fallback(self) -> None:
        """Does nothing: there is one provider."""

    def disable_fallback(self) -> None:
        """Does nothing: there is one provider."""

    # ---- runs ----

    def run(
        self,
        output_names: Optional[Sequence[str]],
        input_feed: Mapping[str, Any],
        run_options: Optional[RunOptions] = None,
    ) -> List[Any]:
        """Runs the model.

        Args:
            output_names: the outputs to return, or None for all.
            input_feed: the value of each input.
            run_options: see :class:`RunOptions`.

        Returns:
            Arrays, lists for sequences, lists of dicts for sequences of maps.

        Raises:
            ValueError: an input is missing.
            InvalidArgument: an input does not fit, or an output is unknown.
            RuntimeException, Fail: the run failed, or was terminated.
        """
        self._validate_input(input_feed)
        return self._run(output_names, input_feed, run_options, None)

    def run_with_ort_values(
        self, output_names: Optional[Sequence[str]], input_dict_ort_values: Mapping[str, OrtValue], run_options: Any = None
    ) -> List[OrtValue]:
        """As :meth:`run`, with values instead of arrays."""
        feed = {name: value._value for name, value in input_dict_ort_values.items()}
        return [OrtValue(result) for result in self.run(output_names, feed, run_options)]

    def run_async(
        self, output_names: Optional[Sequence[str]], input_feed: Mapping[str, Any], callback: Any, user_data: Any, run_options: Any = None
    ) -> None:
        """Runs the model on another thread, which calls ``callback(results, user_data, error)``."""
        import threading

        self._validate_input(input_feed)

        def work() -> None:
            try:
                results, error = self._run(output_names, input_feed, run_options, None), ""
            except Exception as failure:  # noqa: BLE001 - the callback gets every error
                results, error = [], str(failure)
            callback(results, user_data, error)

        threading.Thread(target=work, daemon=True).start()

    def io_binding(self) -> IOBinding:
        """A binding of inputs and outputs to memory."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Optional[RunOptions] = None) -> None:
        """Runs the model on bound inputs and outputs."""
        bound = {name: array for name, array in iobinding._outputs.items() if array is not None}
        names = list(iobinding._outputs) or None
        iobinding._results = self._run(names, iobinding._inputs, run_options, bound)

    def _validate_input(self, given: Mapping[str, Any]) -> None:
        missing = [name for name in self._needed_inputs if name not in given]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(given)}).")

    def _run(
        self,
        output_names: Optional[Sequence[str]],
        feed: Mapping[str, Any],
        run_options: Optional[RunOptions],
        bound: Optional[dict],
    ) -> List[Any]:
        names = output_names or self._output_names
        for name in names:
            if name not in self._output_names:
                raise InvalidArgument.of(f"Invalid output name:{name}")
        values = {name: value._value if isinstance(value, OrtValue) else value for name, value in feed.items()}
        initializers = frozenset(values.keys() - self._input_names)
        for name in initializers:
            if name not in self._info["overridable"]:
                raise InvalidArgument.of(f"Invalid input name: {name}")
        if self._has_maps:
            for arg in self._inputs:
                if arg.type.startswith(("map(", "seq(map(")) and arg.name in values:
                    values.update(_of_maps(arg.name, values[arg.name]))
        for name in self._input_names - values.keys():
            values[name] = None
        if run_options is not None and run_options.terminate:
            raise Fail.of("Exiting due to terminate flag being set to true.")
        try:
            session = self._session(initializers)
            if run_options is None:
                results = session.run(values, bound)
            else:
                with run_options._during(session):
                    results = session.run(values, bound)
        except CancelledError as error:
            raise Fail.of("Exiting due to terminate flag being set to true.") from error
        except InputError as error:
            raise self._misfit(values) or of_error(error) from error
        except Error as error:
            raise of_error(error) from error
        if self._has_maps:
            results = {arg.name: _to_maps(results, arg) for arg in self._outputs}
        return [results[name] for name in names]

    def _misfit(self, values: Mapping[str, Any]) -> Optional[Exception]:
        """The text of onnxruntime for the first input whose type or shape differs from the declared one."""
        for arg in self._inputs:
            value = values.get(arg.name)
            if not arg.type.startswith("tensor(") or not isinstance(value, np.ndarray):
                continue
            actual = type_text(dtype_name(value))
            if actual != arg.type:
                return InvalidArgument.of(f"Unexpected input data type. Actual: ({actual}) , expected: ({arg.type})")
            if not arg.shape:
                continue
            if len(arg.shape) != value.ndim:
                return InvalidArgument.of(
                    f"Invalid rank for input: {arg.name} Got: {value.ndim} Expected: {len(arg.shape)}"
                    " Please fix either the inputs/outputs or the model."
                )
            wrong = [
                f" index: {axis} Got: {got} Expected: {expected}"
                for axis, (got, expected) in enumerate(zip(value.shape, arg.shape))
                if isinstance(expected, int) and got != expected
            ]
            if wrong:
                lines = "\n".join(wrong)
                return InvalidArgument.of(
                    f"Got invalid dimensions for input: {arg.name} for the following indices\n{lines}\n"
                    " Please fix either the inputs/outputs or the model."
                )
        return None


def _of_maps(name: str, value: Any) -> Dict[str, Any]:
    """A map, or a list of maps with the same keys, as the plan takes it: values and keys."""
    maps = value if isinstance(value, list) else [value]
    keys = list(maps[0]) if maps else []
    rows = [[one[key] for key in keys] for one in maps]
    values = np.array(rows if isinstance(value, list) else rows[0])
    values = values.astype(np.float32) if values.dtype == np.float64 else values
    kind: Any = object if keys and isinstance(keys[0], str) else np.int64
    return {name: values, f"{name}.keys": np.array(keys, dtype=kind)}


def _to_maps(results: Mapping[str, Any], arg: NodeArg) -> Any:
    """A result; one that the model declares as maps is values and keys in the plan."""
    value = results[arg.name]
    if "map(" not in arg.type:
        return value
    keys = results[f"{arg.name}.keys"].tolist()
    if arg.type.startswith("map("):
        return dict(zip(keys, value.tolist()))
    return [dict(zip(keys, row)) for row in value.tolist()]

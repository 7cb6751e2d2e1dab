"""Values of an ONNX model as onnxruntime computes them.

python onnxruntime.py MODEL DIR

Reads DIR/input_I.pb, runs the model with every tensor of its main graph as an output and without onnxruntime's own
rewrites, and writes each to DIR/value_I.pb, whose name is that of the tensor. Tensors of types that numpy lacks are
left out. The last line is the version of onnxruntime.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

model_file, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
model = onnx.load(model_file, load_external_data=False)
graph = model.graph
initial = {t.name for t in graph.initializer}
inputs = [v for v in graph.input if v.name not in initial]


def value(i, info):
    data = (folder / f"input_{i}.pb").read_bytes()
    if info.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if info.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def session(names):
    """A session whose outputs are these tensors."""
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    where = str(model_file.resolve().parent)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", where)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def observable(output):
    """Whether the values of an output can be read: a tensor of a type that numpy has."""
    return output.type.startswith("tensor(") and not any(t in output.type for t in ("bfloat16", "float8", "int4", "float4", "int2"))


feed = {v.name: value(i, v) for i, v in enumerate(inputs)}
names = list(dict.fromkeys(name for node in graph.node for name in node.output if name))
outputs = session(names)
names = [o.name for o in outputs.get_outputs() if observable(o)]
results = outputs.run(names, feed) if names else []
for i, (name, result) in enumerate(zip(names, results)):
    if isinstance(result, np.ndarray):
        (folder / f"value_{i}.pb").write_bytes(numpy_helper.from_array(result, name).SerializeToString())
print(onnxruntime.__version__)

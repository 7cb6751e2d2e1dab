"""Models and values as onnxruntime takes them."""

import multiprocessing
import multiprocessing.connection
import os
import time

# Operator sets that onnxruntime knows but does not promise.
os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

onnxruntime.set_default_logger_severity(4)

FLOAT = onnx.TensorProto.FLOAT


def inputs_of(graph):
    """What must be given: initializers may be inputs too."""
    initial = {t.name for t in graph.initializer}
    return [v for v in graph.input if v.name not in initial]


def session(model, optimised=True):
    """Runs `model` on values; those of types that numpy does not have go in and out as float32."""
    def odd(v):
        ty = v.type.tensor_type.elem_type
        return v.type.HasField("tensor_type") and helper.tensor_dtype_to_np_dtype(ty).kind not in "biufOSU"

    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph, back, outside = model.graph, {}, "__float32"
    inputs = inputs_of(graph)
    for v in filter(odd, inputs):
        graph.node.insert(0, helper.make_node("Cast", [v.name + outside], [v.name], to=v.type.tensor_type.elem_type))
        v.name, v.type.tensor_type.elem_type = v.name + outside, FLOAT
    for i, v in enumerate(graph.output):
        if odd(v):
            back[i] = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
            graph.node.append(helper.make_node("Cast", [v.name], [v.name + outside], to=FLOAT))
            v.name, v.type.tensor_type.elem_type = v.name + outside, FLOAT
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(values):
        feed = {v.name: x.astype(np.float32) if v.name.endswith(outside) else x for v, x in zip(inputs, values)}
        return [x.astype(back[i]) if i in back else x for i, x in enumerate(made.run(None, feed))]

    return run


def read(path, ty):
    """A value of type `ty` from a file."""
    data = path.read_bytes()
    if ty.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if ty.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def outcomes(folders, judge, gone, longest):
    """For each folder, which model it is, a word and why: what `judge` says of it, in a process of its own since some
    models crash the runtime; `gone` where it crashed or took more than `longest` seconds."""
    running = {}

    def work(folder, to):
        try:
            to.send(judge(folder))
        except Exception as e:
            to.send(("FAILS", repr(e)))

    def finished():
        ready = multiprocessing.connection.wait(list(running), timeout=1)
        for to, (folder, process, since) in list(running.items()):
            if to in ready:
                try:
                    word, why = to.recv()
                except EOFError:
                    process.join()
                    word, why = gone(folder, f"exit status {process.exitcode}")
            elif time.time() - since > longest:
                process.kill()
                word, why = gone(folder, f"more than {longest} s")
            else:
                continue
            process.join()
            del running[to]
            yield folder, word, why

    # Forked: what is imported need not be imported again for each model.
    context = multiprocessing.get_context("fork")
    for folder in folders:
        ours, to = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(folder, to))
        process.start()
        to.close()
        running[ours] = (folder, process, time.time())
        while len(running) >= (os.cpu_count() or 1):
            yield from finished()
    while running:
        yield from finished()

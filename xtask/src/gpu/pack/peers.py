"""Measures torch, torch.compile, Triton and JAX as of-opt measures itself.

A run copies the inputs from the host, computes, and copies nothing back. It is recorded as a CUDA graph, as of-opt records its
plans; two events of the graph take the time of the computation alone. What cannot be recorded is enqueued instead.
"""

import time

import torch

# Runs of a measurement at most.
MOST_RUNS = 200


def measure(name, model, inputs, program, seconds, case):
    """The times of a peer, and its outputs as f64."""
    tf32 = name.endswith("+tf32")
    kind = name.split("+")[0]
    if kind == "jax":
        import jax_peer

        return jax_peer.measure(model, inputs, seconds, tf32)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    model = model.to(device)
    if kind == "compile":
        model = torch.compile(model, fullgraph=True)
    elif kind == "triton":
        # Products by templates of Triton instead of cuBLAS, the fastest of those that were tried.
        options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "triton.cudagraphs": False}
        model = torch.compile(model, fullgraph=True, options=options)
    host = [x.pin_memory() if device == "cuda" else x for x in inputs]
    fixed = [x.to(device) for x in host]
    if device == "cpu":
        times, outputs = on_cpu(program, model, fixed, seconds)
    else:
        times, outputs = on_gpu(program, model, host, fixed, seconds, graph=kind != "eager")
    return times, [y.detach().double().cpu().numpy() for y in outputs]


def on_gpu(program, model, host, fixed, seconds, graph):
    def upload():
        for x, source in zip(fixed, host):
            x.copy_(source, non_blocking=True)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            upload()
            outputs = program(model, fixed)
        stream.synchronize()
        how = "graph"
        try:
            if not graph:
                raise RuntimeError("not wanted")
            run, events, outputs = recorded(program, model, fixed, upload, stream)
        except (RuntimeError, TypeError) as e:
            print(f"no graph: {e}")
            torch.cuda.synchronize()
            how, events = "stream", [torch.cuda.Event(enable_timing=True) for _ in range(2)]

            def run():
                upload()
                events[0].record()
                program(model, fixed)
                events[1].record()

        for _ in range(3):
            run()
            stream.synchronize()
        times, walls, end = [], [], time.perf_counter() + seconds
        while len(times) < 5 or (time.perf_counter() < end and len(times) < MOST_RUNS):
            begun = time.perf_counter()
            run()
            stream.synchronize()
            walls.append(1e3 * (time.perf_counter() - begun))
            times.append(events[0].elapsed_time(events[1]))
    return {**summary(times, walls), "how": how}, outputs


def recorded(program, model, fixed, upload, stream):
    """A graph of a run, the events in it, and its outputs."""
    events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        upload()
        events[0].record(stream)
        outputs = program(model, fixed)
        events[1].record(stream)
    return graph.replay, events, outputs


def on_cpu(program, model, fixed, seconds):
    """Without a GPU the times say nothing of it; the run shows that the case works."""
    outputs, times, end = program(model, fixed), [], time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < MOST_RUNS):
        begun = time.perf_counter()
        program(model, fixed)
        times.append(1e3 * (time.perf_counter() - begun))
    return {**summary(times, times), "how": "cpu"}, outputs


def summary(times, walls):
    times, walls = sorted(times), sorted(walls)
    return {"device_ms": times[len(times) // 2], "device_min_ms": times[0], "median_ms": walls[len(walls) // 2], "min_ms": walls[0], "runs": len(times)}


def ceilings():
    """Bytes that a large copy moves in a second, read and written, and the rate of large products."""
    if not torch.cuda.is_available():
        return {"cuda": None}
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    found = {"cuda": torch.version.cuda, "name": torch.cuda.get_device_name(), "copy_gb_s": round(2 * x.numel() / best(lambda: y.copy_(x)) / 1e6, 1)}
    for name, dtype, tf32 in [("f32", torch.float32, False), ("tf32", torch.float32, True), ("f16", torch.float16, False), ("bf16", torch.bfloat16, False)]:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
        found[f"{name}_tflop_s"] = round(2 * 8192**3 / best(lambda: a @ b) / 1e9, 1)
    return found


def best(run):
    """Milliseconds of the fastest of ten runs."""
    events, times = [torch.cuda.Event(enable_timing=True) for _ in range(2)], []
    for i in range(13):
        events[0].record()
        run()
        events[1].record()
        torch.cuda.synchronize()
        times.append(events[0].elapsed_time(events[1]))
    return min(times[3:])

"""torch.compile with the backend of_opt against Inductor, on a seeded sample of architectures.

    cargo xtask wheel --test
    PYTHONPATH=target/wheels/installed python3 bindings/python/benches/torch_compile.py --seed 1 [--count 40]
        [--without-inductor] [--threads 1] [--only NAME] [--limit SECONDS]

Half of the sample are models of timm, half families of transformers with at most four layers, all with random weights. Each model
runs in a process of its own: results against eager, then compile time and run time of both compilers, each compiled from scratch.
The table ends with the geometric means of the ratios. It needs torch, timm, transformers, and a C++ compiler for Inductor.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time

TOLERANCE = 1e-4
FAMILIES = (
    "albert bert bloom camembert clip_vision_model convbert convnext convnextv2 cvt data2vec-text data2vec-vision deberta "
    "deberta-v2 deit dinov2 distilbert electra ernie falcon fnet focalnet funnel gemma gemma2 glpn gpt2 gpt_bigcode gpt_neo "
    "gpt_neox gptj hiera hubert ijepa layoutlm levit lilt llama longformer mamba markuplm mistral mobilebert mobilenet_v1 "
    "mobilenet_v2 mobilevit mobilevitv2 mpnet mpt nystromformer olmo opt persimmon phi phi3 poolformer pvt pvt_v2 qwen2 qwen3 "
    "rembert regnet resnet roberta roc_bert roformer rwkv segformer sew siglip_vision_model smollm3 splinter squeezebert "
    "stablelm starcoder2 swin swin2sr swinv2 unispeech vit vit_mae vit_msn vitdet wav2vec2 wavlm whisper xglm xlm "
    "xlm-roberta xlnet xmod yolos yoso"
).split()
LAYERS = "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers".split()


def names_of(seed, count):
    """Names of architectures, more than are needed, as some are too large."""
    import timm

    left_out = ["*_giant*", "*_huge*", "*gigantic*", "*_so150*", "*_xxlarge*", "*_enormous*"]
    models = sorted(timm.list_models(exclude_filters=left_out))
    families = list(FAMILIES)
    random.Random(seed).shuffle(models)
    random.Random(seed).shuffle(families)
    half = count // 2
    return [(f"timm:{n}", half) for n in models[: 3 * half]] + [(f"hf:{n}", count - half) for n in families]


def timm_model(name):
    import timm
    import torch

    model = timm.create_model(name, pretrained=False)
    if sum(p.numel() for p in model.parameters()) > 90e6:
        raise ValueError("over 90 M parameters")
    size = model.default_cfg.get("input_size", (3, 224, 224))
    if size[1] > 320:
        raise ValueError("images over 320 pixels")
    return model, lambda x: model(x), torch.randn(1, *size)


def transformers_model(name):
    import torch
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(name)
    small = {k: min(4, getattr(config, k)) for k in LAYERS if isinstance(getattr(config, k, None), int)}
    if isinstance(getattr(config, "vocab_size", None), int):
        small["vocab_size"] = min(32000, config.vocab_size)
    if isinstance(getattr(config, "hidden_size", None), int) and config.hidden_size > 2048:
        raise ValueError("wider than 2048")
    config = AutoConfig.for_model(name, **small)
    model = AutoModel.from_config(config)
    if sum(p.numel() for p in model.parameters()) > 250e6:
        raise ValueError("over 250 M parameters")
    key = model.main_input_name
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
    if key == "input_ids":
        x = torch.randint(3, 1000, (1, 64))
    elif key == "pixel_values":
        size = getattr(config, "image_size", 224)
        size = size if isinstance(size, int) else size[0]
        x = torch.randn(1, getattr(config, "num_channels", 3), min(size, 512), min(size, 512))
    elif key == "input_values":
        x = torch.randn(1, 16000)
    elif key == "input_features":
        x = torch.randn(1, getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500))
    else:
        raise ValueError("takes " + key)
    cached = hasattr(config, "use_cache")

    def run(x):
        out = model(**{key: x}, **({"use_cache": False} if cached else {}))
        return out.last_hidden_state if hasattr(out, "last_hidden_state") else out[0]

    return model, run, x


def tensors(results):
    import torch

    if isinstance(results, torch.Tensor):
        return [results]
    return [t for r in results for t in tensors(r)] if isinstance(results, (list, tuple)) else []


def difference(results, expected):
    """The largest difference relative to the largest value."""
    import torch

    worst = 0.0
    for got, want in zip(tensors(results), tensors(expected), strict=True):
        if got.shape != want.shape:
            return math.inf
        got, want = got.double(), want.double()
        if not torch.equal(got.isfinite(), want.isfinite()):
            return math.inf
        got, want = got.nan_to_num(0, 0, 0), want.nan_to_num(0, 0, 0)
        worst = max(worst, ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item())
    return worst


def measured(functions, x, seconds=2.0):
    """Milliseconds of the fastest run of each; one of each in a round."""
    best = [math.inf] * len(functions)
    end = time.perf_counter() + seconds * len(functions)
    rounds = 0
    while rounds < 3 or (time.perf_counter() < end and rounds < 200):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function(x)
            best[i] = min(best[i], (time.perf_counter() - start) * 1e3)
        rounds += 1
    return best


def child(name, threads, with_inductor):
    """Measures one model and prints JSON."""
    import warnings

    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    cache = tempfile.TemporaryDirectory()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    import torch

    import of_opt.torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    kind, _, short = name.partition(":")
    try:
        model, run, x = {"timm": timm_model, "hf": transformers_model}[kind](short)
        model.eval()
        for module in model.modules():
            if isinstance(module, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.7, 1.3)
        with torch.no_grad():
            expected = run(x)
        if not all(t.isfinite().all() for t in tensors(expected) if t.is_floating_point()):
            raise ValueError("results are not finite")
    except Exception as why:
        print(json.dumps({"left_out": f"{type(why).__name__}: {str(why)[:100]}"}))
        return
    row, functions, order = {}, [], ["of_opt"] + ["inductor"] * with_inductor
    with torch.no_grad():
        # The first compilation of a process imports Dynamo and AOT Autograd, whichever it is.
        torch.compile(lambda x: x + 1, backend="aot_eager")(torch.zeros(1))
        if with_inductor:
            torch.compile(lambda x: x + 1)(torch.zeros(1))
        for backend in order:
            torch._dynamo.reset()
            try:
                function = torch.compile(run, backend=backend)
                start = time.perf_counter()
                results = function(x)
                row[backend] = {"compile": time.perf_counter() - start, "difference": difference(results, expected)}
                functions.append(function)
            except Exception as why:
                row[backend] = {"error": f"{type(why).__name__}: {str(why).splitlines()[0][:200]}"}
                functions.append(None)
        torch._dynamo.config.suppress_errors = False
        alive = [(b, f) for b, f in zip(order, functions) if f is not None] + [("eager", run)]
        for (backend, _), time_ms in zip(alive, measured([f for _, f in alive], x)):
            row.setdefault(backend, {})["run"] = time_ms
    report = of_opt.torch.report()
    row["fallbacks"] = report.fallbacks
    row["remarks"] = [r for graph in report.graphs for r in graph.remarks]
    row["graphs"] = len(report.graphs)
    row["of_opt_seconds"] = sum(graph.seconds for graph in report.graphs)
    print(json.dumps(row))


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-inductor", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--limit", type=int, default=600)
    parser.add_argument("--json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.threads, not args.without_inductor)
        return
    done, wrong, ratios = {}, [], {"run": [], "compile": [], "eager": []}
    print(f"{'architecture':44} {'difference':>10} {'compile s':>17} {'run ms':>26}   torch's ops")
    print(f"{'':44} {'':>10} {'ours':>8} {'inductor':>8} {'ours':>8} {'inductor':>8} {'eager':>8}")
    for name, wanted in names_of(args.seed, args.count) if not args.only else [(n, 99) for n in args.only.split(",")]:
        kind = name.partition(":")[0]
        if done.get(kind, 0) >= wanted:
            continue
        command = [sys.executable, __file__, "--child", name, "--threads", str(args.threads)]
        command += ["--without-inductor"] * args.without_inductor
        try:
            out = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
            lines = out.stdout.strip().splitlines()
            row = json.loads(lines[-1]) if lines else {"of_opt": {"error": out.stderr.strip()[-300:]}}
        except subprocess.TimeoutExpired:
            row = {"left_out": f"over {args.limit} s"}
        except ValueError:
            row = {"of_opt": {"error": f"exit code {out.returncode}: {out.stderr.strip()[-300:]}"}}
        if args.json:
            with open(args.json, "a") as file:
                print(json.dumps({"name": name, **row}), file=file)
        if "left_out" in row:
            print(f"{name:44} left out: {row['left_out']}", flush=True)
            continue
        done[kind] = done.get(kind, 0) + 1
        ours, other = row["of_opt"], row.get("inductor", {})
        show = lambda side, key, form: format(side[key], form) if key in side else "-"
        print(
            f"{name:44} {show(ours, 'difference', '10.1e'):>10} {show(ours, 'compile', '8.2f'):>8} "
            f"{show(other, 'compile', '8.2f'):>8} {show(ours, 'run', '8.2f'):>8} {show(other, 'run', '8.2f'):>8} "
            f"{show(row.get('eager', {}), 'run', '8.2f'):>8}   {len(row.get('fallbacks', {}))} {ours.get('error', '')}",
            flush=True,
        )
        if "error" in ours or not ours["difference"] <= TOLERANCE:
            wrong.append(name)
        elif "run" in other:
            ratios["run"].append(ours["run"] / other["run"])
            ratios["compile"].append(ours["compile"] / other["compile"])
        if "run" in ours and "run" in row.get("eager", {}):
            ratios["eager"].append(ours["run"] / row["eager"]["run"])
    for what, of in (("run", "Inductor's run time"), ("compile", "Inductor's compile time"), ("eager", "eager's run time")):
        if ratios[what]:
            print(f"{geometric_mean(ratios[what]):.3f} of {of}, geometric mean over {len(ratios[what])}")
    print(f"{sum(done.values()) - len(wrong)} of {sum(done.values())} give torch's results" + "".join(f"\n  not {w}" for w in wrong))


main()

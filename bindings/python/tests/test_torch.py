"""torch.compile with the backend of_opt: results, training, open extents, fallbacks, constants."""

import subprocess
import sys

import pytest

from conftest import require

torch = require("torch")

import of_opt  # noqa: E402
import of_opt.torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    of_opt.torch.report(reset=True)


def close(got, expected, tolerance=1e-4):
    """Whether results agree, relative to the largest value."""
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if not got.dtype.is_floating_point:
        assert torch.equal(got, expected)
        return
    largest = expected.abs().max().item() or 1
    assert (got - expected).abs().max().item() <= tolerance * largest


def compiled(function, **options):
    return torch.compile(function, backend="of_opt", options=options or None)


def whole():
    """Nothing of the last graph is torch's."""
    report = of_opt.torch.report()
    assert report.graphs and not report.fallbacks, report
    return report


def net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8),
        nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.LayerNorm(5), nn.GELU(), nn.Softmax(-1),
    )  # fmt: skip


def test_the_backend_is_registered():
    assert "of_opt" in torch._dynamo.list_backends()


def test_inference_is_one_plan_with_constants():
    model, x = net().eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        close(compiled(model)(x), model(x))
    [graph] = whole().graphs
    assert graph.kind == "inference" and graph.plans == 1 and graph.constants > 5 and graph.compiled == graph.ops


@pytest.mark.parametrize("layer", ["attention", "encoder", "embedding", "groups", "transposed", "resized"])
def test_layers_give_results_of_torch(layer):
    x = torch.randn(2, 6, 16)
    image = torch.randn(2, 4, 9, 9)
    attention = lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    embedding = nn.Sequential(nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 4))
    cases = {
        "attention": (attention, x[:, None]),
        "encoder": (encoder, x),
        "embedding": (embedding, torch.randint(0, 10, (2, 5))),
        "groups": (nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU()), image),
        "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, bias=False), image),
        "resized": (lambda x: F.interpolate(x, size=(13, 20), mode="bilinear"), image),
    }
    function, argument = cases[layer]
    # Otherwise the encoder is a single op of torch.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            close(compiled(function)(argument), function(argument))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    whole()


def put_inside(x):
    y, z = torch.zeros(4, 6), torch.zeros(4, 3, 6)
    y[:, [1, 3]] = x[:, :2]
    z[torch.tensor([0, 1]), :, torch.tensor([5, 5])] = x[0, 0]
    return y + z.sum(1)


FUNCTIONS = {
    "arithmetic": lambda x: (x * 2 - 1) / (x.abs() + 1) + x**2 - (3 - x),
    "integers": lambda x: (x * 10).to(torch.int64) // 3 + (x * 10).to(torch.int32) % 4,
    "comparison": lambda x: torch.where(x > 0, x, x.exp()) * (x != 0.5) * ~(x < -1),
    "mixed": lambda x: x + torch.arange(x.shape[-1]) + (x > 0),
    "log1p": lambda x: torch.log1p(x.abs() * 1e-6) * 1e6 + torch.expm1(x * 1e-6),
    "views": lambda x: x.transpose(0, 1).reshape(-1)[3:20:2].unsqueeze(0).expand(4, -1).flip(0),
    "slices": lambda x: torch.cat([x[:, 1:], x[:, :1], x.select(1, -1)[:, None]], 1).roll(2, 0),
    "stack": lambda x: torch.stack(x.unbind(1), 0) + torch.stack(x.chunk(2, 1)[0].split(1, 1)).sum(),
    "pads": lambda x: F.pad(x, (1, 2), value=3) + F.pad(x[None], (2, 1), mode="reflect")[0],
    "reductions": lambda x: x.sum(1, keepdim=True) + x.mean() + x.amax(0) + x.var(1, keepdim=True) + x.std() + x.norm(),
    "extremes": lambda x: x.max(1).values + x.min(1).indices + x.argmax() + x.argmin(1),
    "truth": lambda x: (x > 0).any(1).float() + (x > 9).all() + x.cumsum(1)[:, 0],
    "indices": lambda x: x[:, torch.tensor([2, 0, -1])] + x[torch.tensor([[0], [1]]), torch.tensor([0, 2, 1])][:, :3].sum(),
    "gather": lambda x: x.gather(1, x.argsort(1)) + x.topk(6, 1).values + x.sort(1, descending=True).values,
    "scatter": lambda x: torch.zeros_like(x).scatter_add(1, x.argsort(1), x).masked_fill(x < 0, 2),
    "put": lambda x: torch.zeros(4, 6).index_put((torch.tensor([1, 3]),), x[:2]) + torch.tril(x) + torch.triu(x, 1),
    "put inside": lambda x: put_inside(x),
    "fold": lambda x: F.fold(x.reshape(1, 4, 6), (3, 4), 2),
    "memory": lambda x: (x.T + 1).as_strided((3, 4), (2, 1), 3) + x.as_strided((3, 4), (1, 6)),
    "activations": lambda x: F.leaky_relu(x) + F.elu(x) + F.softplus(x) + F.mish(x) + F.hardsigmoid(x) + F.glu(x, 0).sum(),
    "unfold": lambda x: x.unfold(1, 3, 2).sum(-1) + torch.diagonal(x).sum(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x) + torch.baddbmm(x @ x.T, x[None], x.T[None], beta=2)[0],
    "mutation": lambda x: x.clone().mul_(2).add_(1).index_fill_(0, torch.tensor([1]), 5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_results_of_torch(name):
    function, x = FUNCTIONS[name], torch.randn(4, 6)
    close(compiled(function)(x), function(x))
    whole()


def test_training_steps_match():
    x, target = torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
    models = [net(), net()]
    models[1].load_state_dict(models[0].state_dict())
    losses = []
    for model, run in zip(models, (models[0], compiled(models[1]))):
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(run(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    close(torch.stack(losses[3:]), torch.stack(losses[:3]))
    # Relative to all gradients: that of a bias before a batch norm is zero but for rounding.
    gradients = [torch.cat([p.grad.flatten() for p in model.parameters()]) for model in models]
    close(gradients[1], gradients[0])
    assert {graph.kind for graph in of_opt.torch.report().graphs} == {"forward", "backward"}
    whole()


def test_open_extents_do_not_compile_again():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    run = torch.compile(model, backend="of_opt", dynamic=True)
    with torch.no_grad():
        for rows in (3, 5, 64):
            x = torch.randn(rows, 8)
            close(run(x), model(x))
    assert len(whole().graphs) == 1


def test_extents_are_values():
    function = lambda x: x.reshape(x.shape[0] * 2, -1).sum(1) / x.shape[0] + torch.arange(2 * x.shape[0])
    run = torch.compile(function, backend="of_opt", dynamic=True)
    for rows in (4, 6, 10):
        x = torch.randn(rows, 8)
        close(run(x), function(x))
    assert len(of_opt.torch.report().graphs) == 1


def test_what_is_not_supported_is_torchs_with_a_reason(capsys):
    function = lambda x: torch.fft.rfft(x.relu() + 1).abs().sin() + 1
    x = torch.randn(4, 8)
    close(compiled(function, explain=True)(x), function(x))
    [graph] = of_opt.torch.report().graphs
    assert graph.fallbacks and graph.compiled >= 2 and graph.plans >= 1
    assert any("fft" in op and why for op, why in graph.fallbacks.items())
    assert "torch runs" in capsys.readouterr().out


def test_strides_over_gaps_are_torchs():
    function = lambda x: (x + 1)[:, ::2].as_strided((4, 3), (6, 1)) * 2
    x = torch.randn(4, 6)
    close(compiled(function)(x), function(x))
    assert "depends on strides" in str(of_opt.torch.report())


def test_random_numbers_are_torchs():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    x = torch.randn(2, 8)
    torch.manual_seed(3)
    result = compiled(model)(x)
    assert result.shape == (2, 8) and of_opt.torch.report().fallbacks


def test_changed_parameters_count():
    model, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    run = compiled(model)
    with torch.no_grad():
        for _ in range(5):
            close(run(x), model(x))
            model.weight.add_(1)
        close(run(x), model(x))
        model.weight = nn.Parameter(torch.ones(4, 4))
        close(run(x), model(x))
    assert any("inputs now" in remark for graph in of_opt.torch.report().graphs for remark in graph.remarks)


def test_parameters_may_stay_inputs():
    model, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    with torch.no_grad():
        close(compiled(model, freeze=False)(x), model(x))
    assert whole().graphs[0].constants == 0


def test_tensors_are_not_copied():
    x = torch.randn(1000, 100)
    run = torch.compile(lambda x: x + 1, backend="of_opt", dynamic=True)
    close(run(x), x + 1)
    kept = run(x)
    again = run(x)
    assert kept.data_ptr() != again.data_ptr()
    close(kept, x + 1)


def test_strided_inputs_are_read():
    x = torch.randn(6, 4).T
    close(compiled(lambda x: x * 2)(x), x * 2)
    image = torch.randn(1, 3, 5, 5).to(memory_format=torch.channels_last)
    close(compiled(lambda x: x * 2)(image), image * 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_element_types(dtype):
    x = torch.randn(4, 8).to(dtype)
    function = lambda x: torch.softmax(x @ x.T, -1) * 2
    close(compiled(function)(x), function(x), 1e-4 if dtype == torch.float64 else 2e-2)


def test_options_are_checked():
    x = torch.randn(2)
    for wrong in ({"options": {"unknown": 1}}, {"mode": "max-autotune"}):
        with pytest.raises(Exception, match="has no (option|mode)"):
            torch.compile(lambda x: x + 1, backend="of_opt", **wrong)(x)


def test_the_package_does_not_import_torch():
    script = "import sys, of_opt, of_opt.ir; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"


def test_tables_name_ops_of_torch():
    from of_opt.torch._table import TABLE

    unknown = []
    for name in TABLE:
        _, op, overload = name.split(".")
        packet = getattr(torch.ops.aten, op, None)
        if packet is None or overload not in packet.overloads():
            unknown.append(name)
    assert not unknown

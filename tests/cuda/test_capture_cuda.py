# SPDX-License-Identifier: Apache-2.0
"""A captured step on CUDA. What it computes only a real device shows; what it is made of, dry CUDA does too."""

import pytest
import stowage
import torch
import torchvision
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device; run under scripts/drycuda")

cross_entropy = nn.functional.cross_entropy


class Reader(nn.Module):
    """A transformer encoder with dropout."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, dropout=0.1, batch_first=True)
        self.embed = nn.Embedding(100, 64)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 100)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)).mean(1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 192)

    def forward(self, x):
        query, key, value = self.project(x).view(*x.shape[:2], 3, 1, 64).permute(2, 0, 3, 1, 4)
        made = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=True)
        return made.mean((1, 2))


def net():
    return nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.GELU(), nn.Dropout(0.2), nn.Linear(24, 5))


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)


def rows(*shape, device="cuda"):
    return torch.randn(shape, device=device), torch.zeros(shape[0], dtype=torch.long, device=device)


def tokens():
    return torch.zeros(3, 16, dtype=torch.long, device="cuda"), torch.zeros(3, dtype=torch.long, device="cuda")


def captured(model, optimizer, x, y):
    return stowage.capture(model, cross_entropy, optimizer, x, y, strict=True)


def kinds(step):
    return [node.kind() for node in step.graphs[-1].graph.nodes()]


@pytest.mark.parametrize("make_optimizer", [sgd, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    ("make_model", "make_batch"), [(torchvision.models.resnet18, lambda: rows(2, 3, 64, 64)), (Reader, tokens)]
)
def test_step_and_its_state_are_on_the_device(make_model, make_batch, make_optimizer):
    model, (x, y) = make_model().cuda(), make_batch()
    optimizer = make_optimizer(model.parameters())
    step = captured(model, optimizer, x, y)
    for _ in range(4):
        loss = step(x, y)
        assert step.captured
    assert loss.device == x.device
    assert len(optimizer.state) == len(list(model.parameters()))
    for param, state in optimizer.state.items():
        count = state.pop("step", None)  # eager keeps it in the host's memory, too
        assert count is None or (count.device.type, count.item()) == ("cpu", 4)
        assert state and all(tensor.device == param.device for tensor in state.values())


def test_capture_allocates_nothing_and_draws_no_random_number():
    model, (x, y) = net().cuda(), rows(6, 12)
    optimizer = sgd(model.parameters())
    before = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.get_rng_state().tolist()
    captured(model, optimizer, x, y)
    after = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.get_rng_state().tolist()
    assert after == before


class Literals(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(12, 5)

    def forward(self, x):
        x = x * torch.tensor([0.5] * 12, device=x.device) + torch.tensor(3.0).to(x.device)
        return self.out(x * torch.tensor([2], dtype=torch.int32).to(x))


@pytest.mark.parametrize("make_optimizer", [sgd, torch.optim.Adam])
def test_steady_step_does_not_wait_for_the_device(make_optimizer):
    model, (x, y) = nn.Sequential(Literals(), nn.ReLU(), nn.Linear(5, 5)).cuda(), rows(6, 12)
    step = captured(model, make_optimizer(model.parameters()), x, y)
    step(x, y)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            torch.tensor(3.0).to(x.device)
        for _ in range(4):
            loss = step(x, y)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert step.captured and loss.is_cuda
    assert "aten::_to_copy" not in kinds(step)


def test_nothing_is_fused():
    model, (x, y) = net().cuda(), rows(6, 12)
    step = captured(model, torch.optim.Adam(model.parameters()), x, y)
    for _ in range(4):
        step(x, y)
    ran = {node.kind() for node in torch.jit.last_executed_optimized_graph().nodes()}
    assert {kind for kind in ran if kind.startswith("prim::")} <= {"prim::Constant", "prim::ListConstruct"}

    script = torch.jit.CompilationUnit("def f(x):\n    return ((x * 2).sin() + x).exp()\n").f
    for _ in range(3):  # the user's own are profiled and fused as ever
        script(x)
    assert "prim::TensorExprGroup" in str(torch.jit.last_executed_optimized_graph())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_attention_draws_its_dropout_in_order(dtype):
    """Its backward takes tensors that are undefined, for which TorchScript has no literal."""
    model, (x, y) = nn.Sequential(Attention(), nn.Linear(64, 5)).cuda(), rows(2, 16, 64)
    with torch.autocast("cuda", dtype, enabled=dtype is not None):
        step = captured(model, sgd(model.parameters()), x, y)
        for _ in range(4):
            step(x, y)
            assert step.captured
    names = [kind for kind in kinds(step) if "scaled_dot_product" in kind]
    assert len(names) == 2 and names[1] == names[0] + "_backward"
    forward = getattr(torch.ops.aten, names[0].removeprefix("aten::")).default
    assert torch.Tag.nondeterministic_seeded in forward.tags  # what the planner tells random ops by


def test_backend_that_a_user_chooses_later():
    model, (x, y) = nn.Sequential(Attention(), nn.Linear(64, 5)).cuda(), rows(2, 16, 64)
    step = captured(model, sgd(model.parameters()), x, y)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        step(x, y)
    assert len(step.graphs) == 2
    assert "aten::_scaled_dot_product_efficient_attention" in {node.kind() for node in step.graphs[0].graph.nodes()}
    assert not [kind for kind in kinds(step) if "scaled_dot_product" in kind]


def test_recurrent_layers_of_cudnn_are_refused():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.out = nn.LSTM(12, 12, batch_first=True), nn.Linear(12, 5)

        def forward(self, x):
            return self.out(self.cells(x)[0][:, -1])

    x, y = rows(2, 6, 12)
    with torch.backends.cudnn.flags(enabled=False):
        model = Recurrent().cuda()
        assert captured(model, sgd(model.parameters()), x, y).captured
    with pytest.raises(stowage.CaptureError, match="as cuDNN's LSTM and GRU do at .*; for these, set torch.backends"):
        captured(model, sgd(model.parameters()), x, y)


def test_batch_norm_of_cudnn_stays_though_its_result_is_not_used():
    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.BatchNorm2d(3), nn.Linear(12, 5)

        def forward(self, x):
            self.norm(x)
            return self.out(x.flatten(1))

    model, (x, y) = Watched().cuda(), rows(2, 3, 2, 2)
    step = captured(model, sgd(model.parameters()), x, y)
    assert [kind for kind in kinds(step) if "batch_norm" in kind]
    for _ in range(3):
        step(x, y)
    assert model.norm.num_batches_tracked.device == x.device


@pytest.mark.parametrize("option", ["fused", "foreach", "capturable"])
def test_other_implementations_are_refused(option):
    model, (x, y) = net().cuda(), rows(6, 12)
    with pytest.raises(stowage.CaptureError) as refused:
        captured(model, torch.optim.Adam(model.parameters(), **{option: True}), x, y)
    cause = f"option '{option}=True' of optimizer 'Adam' is not supported"
    assert str(refused.value) == f"cannot capture 'Sequential': {cause}; leave it out"


class Spread(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = nn.Linear(12, 12, device=first), nn.Linear(12, 5, device=second)

    def forward(self, x):
        return self.second(self.first(x.to(self.first.weight.device)).to(self.second.weight.device))


@pytest.mark.parametrize("devices", [("cpu", "cuda:0"), ("cuda:0", "cuda:1")])
def test_model_on_two_devices_trains_as_eager(devices):
    if torch.cuda.device_count() < 2 and "cuda:1" in devices:
        pytest.skip("one CUDA device only")
    model, (x, y) = Spread(*devices), rows(6, 12, device=devices[1])
    cause = f"it uses the devices '{devices[0]}' and '{devices[1]}'; put it on one"
    with pytest.warns(UserWarning, match=f"cannot capture 'Spread': {cause}, or go on as it runs now: unplanned"):
        step = stowage.capture(model, cross_entropy, sgd(model.parameters()), x, y)
    assert step(x, y).device == y.device
    assert not step.captured


def test_batch_from_the_host():
    model, (x, y) = Spread("cuda", "cuda"), rows(6, 12, device="cpu")
    step = captured(model, sgd(model.parameters()), x, y.cuda())
    step(x, y.cuda())
    assert step.captured


def test_second_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    model, (x, y) = net().to("cuda:1"), rows(6, 12, device="cuda:1")
    optimizer = sgd(model.parameters())
    step = captured(model, optimizer, x, y)
    before = torch.cuda.memory_stats("cuda:0").get("allocation.all.allocated", 0)
    for _ in range(4):
        assert step(x, y).device == x.device
    assert step.captured
    assert torch.cuda.memory_stats("cuda:0").get("allocation.all.allocated", 0) == before


def test_cuda_graph_records_eager():
    """A recorded step would repeat the numbers of the step that was recorded."""
    model, (x, y) = nn.Linear(12, 5).cuda(), rows(6, 12)
    step = stowage.capture(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), x, y)
    step(x, y)
    assert step.captured
    with pytest.warns(UserWarning, match="cannot capture 'Linear': a CUDA graph is being recorded"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            step(x, y)
            assert not step.captured
    step(x, y)
    assert step.captured

# SPDX-License-Identifier: Apache-2.0
"""Whole training steps on dry CUDA, in processes of their own, as the figures are those of a fresh allocator."""

import pytest

RESNET18 = """
import json, torch, torchvision
from drycuda import control
torch.backends.cudnn.benchmark = False
torch.manual_seed(0)
model = torchvision.models.resnet18().cuda().train()
images, labels = torch.randn(32, 3, 224, 224, device="cuda"), torch.zeros(32, dtype=torch.long, device="cuda")
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
def step():
    optimizer.zero_grad(set_to_none=True)
    logits = model(images)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    return loss
for _ in range(3):
    torch.cuda.reset_peak_memory_stats()
    loss = step()
stats = torch.cuda.memory_stats()
print(json.dumps({"allocated": stats["allocated_bytes.all.peak"], "reserved": stats["reserved_bytes.all.peak"],
                  "driver": control.used_bytes(), "violations": control.violations()}))
"""


def test_resnet18_takes_what_it_takes_from_the_real_allocator(run_python):
    assert run_python(RESNET18) == {"allocated": 944373760, "reserved": 1293942784, "driver": 1293942784,
                                    "violations": []}


def test_resnet18_in_expandable_segments(run_python):
    assert run_python(RESNET18, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") == {
        "allocated": 941113344, "reserved": 962592768, "driver": 962592768, "violations": []}


def test_the_stated_workspace_of_cudnn_is_taken(run_python):
    workspace_bytes = 256 << 20
    with_workspace = run_python(RESNET18, DRYCUDA_CUDNN_WORKSPACE_BYTES=str(workspace_bytes))
    assert with_workspace["allocated"] > 944373760


MODEL = """
import json, warnings, torch, torchvision
from drycuda import control
warnings.simplefilter("ignore")
torch.manual_seed(0)
model, inputs = {model}
model = model.cuda().train()
inputs = [tensor.cuda() for tensor in inputs]
optimizer = torch.optim.Adam(model.parameters(), fused={fused})
live = []
for step in range(3):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled={amp}):
        outputs = model(*inputs)
        outputs = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        loss = outputs.float().square().mean()
    loss.backward()
    optimizer.step()
    del outputs, loss
    live.append(torch.cuda.memory_allocated())
print(json.dumps({{"live": live, "launches": control.counts()["launches"], "violations": control.violations()}}))
"""
IMAGES = "[torch.randn(2, 3, 224, 224)]"
MODELS = {
    "googlenet": f"torchvision.models.googlenet(init_weights=False), {IMAGES}",
    "efficientnet": f"torchvision.models.efficientnet_b0(), {IMAGES}",
    "densenet": f"torchvision.models.densenet121(), {IMAGES}",
    "vit": f"torchvision.models.vit_b_16(), {IMAGES}",
    "r3d": "torchvision.models.video.r3d_18(), [torch.randn(1, 3, 8, 112, 112)]",
    "transformer": "torch.nn.Transformer(64, 4, 2, 2, 128, batch_first=True), 2 * [torch.randn(2, 16, 64)]",
}


@pytest.mark.slow
@pytest.mark.parametrize("amp", [False, True], ids=["full", "amp"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_models_train_and_reach_a_steady_state(run_python, model, amp):
    seen = run_python(MODEL.format(model=model, amp=amp, fused=amp))
    assert seen["violations"] == []
    assert seen["launches"] > 100
    assert seen["live"][1] == seen["live"][2] > 0

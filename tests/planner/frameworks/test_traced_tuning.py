"""Memory of a step of fine-tuning: what transformers, PEFT and bitsandbytes hold, by fake tensors.

Models have their full size: nothing is allocated or computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import planner
from cost_models.catalog.models import model as preset
from planner.huggingface.export.exporter import config_of

GIB = 2**30
RANK, LENGTH = 16, 2048
LORA = {"lora_rank": RANK}
METHODS = {"full": {}, "lora": LORA, "qlora": {**LORA, "frozen_dtype": "nf4"}}


@contextmanager
def autocast() -> Iterator[None]:
    """Autocast of a GPU's step, with the operators of a CPU: torch has no fake GPU without CUDA.

    PEFT asks whether the GPU's is on.
    """
    torch.set_autocast_enabled("cuda", True)
    with torch.autocast("cpu", torch.bfloat16):
        yield
    torch.set_autocast_enabled("cuda", False)


@contextmanager
def half_attention() -> Iterator[None]:
    """Autocast of a GPU casts what attention gets; a CPU's knows no flash attention."""
    own = F.scaled_dot_product_attention

    def attention(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Tensor:
        more.pop("enable_gqa", None)
        return own(q.bfloat16(), k.bfloat16(), v.bfloat16(), **more)

    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = own


def on_meta(name: str, method: str, recompute: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """The model as trainers build it, without weights."""
    import bitsandbytes as bnb
    import peft
    from transformers import AutoConfig, AutoModelForCausalLM

    keys = config_of(preset(name))
    assert keys is not None
    config = AutoConfig.for_model(**keys, use_cache=False)
    dtype = torch.float32 if method == "full" else torch.bfloat16
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    # Packed samples have no mask, which transformers cannot know of fake tensors.
    module = __import__(type(model).__module__, fromlist=["_"])
    monkeypatch.setattr(module, "create_causal_mask", lambda **_: None)
    if method == "qlora":
        for path, layer in list(model.named_modules()):
            if isinstance(layer, nn.Linear) and path != "lm_head":
                four = bnb.nn.Linear4bit(
                    layer.in_features, layer.out_features, bias=False, quant_type="nf4",
                    compute_dtype=torch.bfloat16, device="meta",
                )  # fmt: skip
                model.set_submodule(path, four)
    if recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if method != "full":
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
        )
        model.enable_input_require_grads()
    return model.train()


def fill(model: nn.Module) -> int:
    """Fake weights in place of none; the bytes of what four-bit weights are scaled with."""
    import bitsandbytes as bnb

    scales = 0
    for module in model.modules():
        for name, one in module._parameters.items():
            if isinstance(one, bnb.nn.Params4bit):
                packed, state = bnb.functional.quantize_4bit(
                    torch.empty(one.shape, dtype=torch.bfloat16), quant_type="nf4",
                    compress_statistics=True,
                )  # fmt: skip
                module._parameters[name] = nn.Parameter(packed, requires_grad=False)
                module.weight.quant_state = module.quant_state = state
                scales += state.absmax.nbytes + state.state2.absmax.nbytes
            elif one is not None:
                fake = torch.empty_like(one, device="cpu")
                module._parameters[name] = nn.Parameter(fake, requires_grad=one.requires_grad)
        for name, one in module._buffers.items():
            module._buffers[name] = torch.empty_like(one, device="cpu")
    return scales


def traced(
    name: str, method: str, recompute: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> float:
    """Peak bytes of a step after the first."""
    import bitsandbytes as bnb
    from torch._subclasses.fake_tensor import FakeTensorMode

    from planner.running.validate.dryrun.gpu_operators import gpu_operators
    from planner.running.validate.ranks.memory import Memory

    # A table of numbers, which fake tensors could not give.
    bnb.functional.name2qmap["dynamic"] = bnb.functional.create_dynamic_map()
    model = on_meta(name, method, recompute, monkeypatch)
    with FakeTensorMode(allow_non_fake_inputs=True), gpu_operators(), half_attention():
        scales = fill(model)
        trained = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(trained, fused=True)
        for one in trained:
            one.grad = torch.zeros_like(one)
        optimizer.step()
        optimizer.zero_grad()
        words = torch.zeros((1, LENGTH), dtype=torch.int64)
        places = torch.arange(LENGTH)[None]
        with Memory([model], optimizer) as memory:
            for _ in range(passes):
                with autocast():
                    loss = model(input_ids=words, position_ids=places, labels=words).loss
                loss.backward()
            optimizer.step()
        return memory.peak_bytes["total"] + scales


@pytest.mark.exhaustive
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-8b"])
def test_a_step_holds_what_is_estimated(
    name: str, method: str, recompute: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but what only a GPU has: the driver's, the allocator's and matrix products' workspace."""
    answer = planner.estimate(
        {
            "model": name,
            "cluster": "1x1xh200-sxm",
            "training": {**METHODS[method], "seq_length": LENGTH, "global_batch_size": passes},
            "plan": {"recompute": recompute, "cross_entropy": "unfused", "zero_stage": 0},
            "search": {"framework": "trl"},
        }
    )
    (stage,) = answer.estimate.memory.stages
    found = traced(name, method, recompute, passes, monkeypatch)
    assert stage.allocated_bytes / GIB == pytest.approx(found / GIB, rel=0.02)

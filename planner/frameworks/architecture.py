"""Finds options that decide what is trained: layers, widths, experts, attention, frozen weights.

If no reader understands such an option, the model that was read may be wrong, so the files are
refused; any other unknown option is only reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from planner.frameworks.read_results import Setting, Unreadable

# Words in an option's name: those of what is built or trained, and those (_ASIDE) that show that
# the option is about something else.
_BUILDS = frozenset(
    re.findall(
        r"\S+",
        "layer layers hidden intermediate ffn mlp head heads expert experts moe attention attn "
        "window lora dora qlora peft adapter freeze frozen vision image img encoder mamba ssm rwkv "
        "retnet retro spec noop kv gqa mqa mla dsa csa gdn query queries mtp depth width wide "
        "multiple multiplier indexer hyper mhc residual conv conv1d channels tie tied untie share "
        "shared hybrid heterogeneous router topk sparse gate gated glu swiglu geglu teacher "
        "distill distillation draft eagle eagle3 medusa engram swa nope recurrent recurrence "
        "provider linear cross ple architecture arch dense dim dims dimension",
    )
)
# The words of _BUILDS that decide which weights are trained, whatever the model.
_TUNES = frozenset({"lora", "dora", "qlora", "peft", "adapter", "freeze", "frozen", "teacher"})
_ASIDE = re.compile(
    r"""(?:^|[-_.])(?:
    init|std|dropout|lr|loss|losses|coeff?|aux|log|logging|report|print|monitor|
    path|paths|dir|load|save|ckpt|checkpoint|checkpoints|checkpointing|convert|hf|hf2mg|hf2mcore|
    recompute|recomputation|remat|activations?|fp32|bf16|fp16|fp8|fp4|mxfp8|int8|qat|dtype|softmax|
    precision|quantization|fusion|fused|fuse|kernel|kernels|backend|impl|implementation|flash|
    overlap|comm|communication|async|dispatcher|dispatch|a2a|permute|permutation|unpermute|
    eps|epsilon|jitter|rate|decay|wd|buffer|bucket|offload|offloading|swap|memory|mem|
    inference|eval|evaluation|generate|generation|sample|sampling|seed|cuda|graph|graphs|
    world|node|nodes|local|machine|master|process|mask|reset|pad|padding|unpad|packing|
    parallel-(?:size|sizes|algo|degree|method)|parallelism|parallelize|placement|
    rotary|rope|position|embedding|init_method|sync|synchronize|timeout|clip|grad|gradient|weight|
    id|ids|name|type-hf|group-query|rollout|ref|critic|reward|server|sglang|vllm|
    balancing|balance|bias-update|z|skip|tensorboard|wandb|data|dataset|tokenizer|template|
    upcycling|mup|force|rl|grpo|trace|stash|glu-linear-offset|num-sms|blocks?-sms
    )(?:$|[-_.])""",
    re.VERBOSE,
)
# Options of Megatron-LM, MindSpeed and Megatron-DeepSpeed that may change what is trained -> the
# value that changes nothing; None: every value changes it.
OWN: dict[str, str | None] = {
    "--heterogeneous-layers-config-path": None,
    "--heterogeneous-layers-config-encoded-json": None,
    "--freeze-all-layers": None,
    "--hybrid-attention-ratio": "0.0",
    "--hybrid-mlp-ratio": "0.0",
    "--mtp-hybrid-override-pattern": None,
    "--mtp-use-repeated-layer": None,
    "--enable-mhc-connections": None,
    "--share-kvstates": None,
    "--kd": None,
    "--mos": None,
    "--retro-add-retriever": None,
    "--decoder-num-layers": None,
    "--mlp-type": "standard",
    "--noop-layers": None,
    "--num-layer-list": None,
    "--gdp-num-householder": "1",
}


def _words(name: str) -> set[str]:
    return set(re.split(r"[-_.]+", name.lower()))


def builds(name: str) -> bool:
    """Whether an option may change what is trained, judged by the words of its name."""
    return bool(_words(name) & _BUILDS) and not _ASIDE.search(name.lower().lstrip("-"))


def refuse(unknown: Iterable[Setting], unread: Iterable[Setting] = (), named: bool = False) -> None:
    """Raises Unreadable with the given options that may change what is trained.

    named: the model is given by its name, so that only the choice of trained weights is open.
    """
    found = [one for one in unknown if builds(one.name) and not _is_off(one)]
    if named:
        found, unread = [one for one in found if _TUNES & _words(one.name)], ()
    found += [one for one in unread if one.name in OWN and not _is_plain(one, OWN[one.name])]
    if not found:
        return
    names = ", ".join(dict.fromkeys(_shown(one) for one in found))
    raise Unreadable(
        f"{names}: not understood, and may change what is trained (layers, widths, experts, "
        "attention or frozen weights); give the model by its name (--model)",
        found[0].file,
        found[0].line,
    )


def _shown(setting: Setting) -> str:
    value = setting.value if isinstance(setting.value, str) else " ".join(setting.value or ())
    return f"{setting.name} {value[:60]}".rstrip()


def _is_off(setting: Setting) -> bool:
    """Whether a setting's value only switches something off."""
    return setting.value in ("none", "None", "false", "False", "0", "null", "")


def _is_plain(setting: Setting, usual: str | None) -> bool:
    return usual is not None and setting.value == usual

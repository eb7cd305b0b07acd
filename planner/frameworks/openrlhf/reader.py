"""Reads the training part of an OpenRLHF run: a transformers model under DeepSpeed's ZeRO.

Options and defaults of openrlhf/cli/train_ppo_ray.py (3c3be62).
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.frameworks import post_training, training_calls
from planner.frameworks.accelerate.settings import ATTENTION
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import DEGREE, Values, malformed, options
from planner.frameworks.launch_files import given_with
from planner.frameworks.read_results import Reading, Setting

TITLE, MARK = "OpenRLHF", "--actor.num_gpus_per_node"
MODEL = "--actor.model_name_or_path"
SWITCHES = frozenset({
    "--train.dynamic_batch_enable", "--actor.gradient_checkpointing_enable", "--ds.adam_offload",
    "--ds.packing_samples", "--ds.use_liger_kernel",
})  # fmt: skip
# Options that decide what is trained or how, and that no plan of ours says.
UNPLANNED = {
    "--critic.model_name_or_path": "a critic is trained beside the policy",
    "--ds.lora.rank": "adapters are trained",
    "--ds.load_in_4bit": "adapters are trained on four-bit weights",
    "--ds.ring_attn_size": "sequences are split by ring attention",
    "--ds.tensor_parallel_size": "matrices are split by DeepSpeed",
}
KERNELS = {name: kernel for kernel, name in ATTENTION.items()}
APART = (
    "only the policy's training is costed, without generation, reference and reward, with every "
    "sequence as long as the longest"
)


def launches(call: ProgramCall) -> bool:
    """Whether a call is a step of OpenRLHF's RL."""
    return any(word.text.partition("=")[0] == MARK for word in call.arguments)


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some script starts one."""
    return training_calls.training_call_if_any(files, [MARK], launches, TITLE) is not None


def read(files: Mapping[str, str]) -> Reading:
    """The specs and the plan of the policy's training; raises Unreadable."""
    call = training_calls.training_call(files, launches, TITLE)
    given, program = given_with(files), call.launch.program
    said = options(call.launch.arguments, SWITCHES)
    values = Values({one.name: one for one in said}, program.file, [*call.notes, APART])
    _refuse(values)
    name = values.text(MODEL) or ""
    place = (program.file, program.line)
    model = given.model or post_training.preset(name, f"{MODEL} is missing", place, values.assumed)
    nodes = values.integer("--actor.num_nodes", default=1, most=DEGREE)
    each = values.integer(MARK, default=8, most=DEGREE)
    length, micro = _passes(values, nodes * each)
    precision = values.choice("--ds.param_dtype", choices=("bf16", "fp16"), default="bf16")
    full = values.boolean("--actor.gradient_checkpointing_enable")
    try:
        training = TrainingSpec(
            seq_length=length,
            global_batch_size=values.integer("--train.batch_size", default=128),
            precision=precision,
            gradient_dtype=values.text("--ds.grad_accum_dtype") or precision,
            gradient_reduce_dtype=precision,
        )
        plan = ParallelPlan(
            dp=nodes * each,
            zero_stage=values.integer("--ds.zero_stage", default=2, least=0, most=3),
            micro_batch_size=micro,
            recompute="full" if full else "none",
            recompute_num_layers=model.num_layers if full else 0,
            offload_optimizer=values.boolean("--ds.adam_offload"),
            attention_kernel=KERNELS.get(values.text("--ds.attn_implementation") or "", "flash2"),
            cross_entropy="unfused",
            runtime="deepspeed",
        )
    except ValidationError as error:
        raise malformed(error, program.file) from None
    return Reading(
        framework="accelerate",
        model=model,
        training=training,
        plan=plan,
        nodes=nodes,
        accelerators_per_node=each,
        settings=tuple(said),
        unread=tuple(one for one in said if one.name not in values.asked),
        assumed=tuple(dict.fromkeys(values.assumed)),
        written=False,
    )


def _refuse(values: Values) -> None:
    """Raises Unreadable where something else than all weights of the policy is trained."""
    for name, why in UNPLANNED.items():
        one: Setting | None = values.settings.get(name)
        values.has(name)
        if one is not None and str(one.value) not in ("0", "1", "None", ""):
            raise one.unreadable(f"{name} {one.value or ''}: {why}, which is not read")


def _passes(values: Values, ranks: int) -> tuple[int, int]:
    """Tokens of the longest sequence, and how many of these a pass has."""
    length = values.integer("--data.max_len", default=2048)
    micro = values.integer("--train.micro_batch_size", default=1)
    if values.boolean("--train.dynamic_batch_enable"):
        tokens = values.integer("--train.max_tokens_per_gpu", default=16192)
        share = values.integer("--train.batch_size", default=128) // ranks
        micro = post_training.sequences(tokens, length, max(share, 1))
        values.assume(f"passes of {tokens} tokens are costed as {micro} of the longest sequences")
    return length, micro

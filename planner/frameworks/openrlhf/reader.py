"""Reads OpenRLHF's trainings, of a step of RL its training part: transformers under ZeRO.

Options and defaults of openrlhf/cli/train_ppo_ray.py (3c3be62), and those of older releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import post_training, training_calls
from planner.frameworks.accelerate import tuning
from planner.frameworks.accelerate.settings import ATTENTION
from planner.frameworks.bash import ProgramCall
from planner.frameworks.given_values import DEGREE, LaunchValues, Values, malformed, options
from planner.frameworks.launch_files import given_with
from planner.frameworks.openrlhf import flat_options, grouped_options
from planner.frameworks.read_results import Reading, Setting
from planner.frameworks.training_calls import World

RL = "next_token"
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
    "only the policy's training is costed, without generation, reference, reward and critic, with "
    "every sequence as long as the longest"
)


def launches(call: ProgramCall) -> bool:
    """Whether a call is a step of OpenRLHF's RL, or one of its other trainings."""
    training = flat_options.launches(call) or grouped_options.launches(call)
    return training or any(word.text.partition("=")[0] == MARK for word in call.arguments)


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some script starts one."""
    hints = (MARK, flat_options.MARK, grouped_options.MARK, "--pretrain")
    return training_calls.training_call_if_any(files, hints, launches, TITLE) is not None


def read(files: Mapping[str, str], accelerators: int | None = None) -> Reading:
    """The specs and the plan of the training; raises Unreadable."""
    call = training_calls.training_call(files, launches, TITLE)
    given, program = given_with(files), call.launch.program
    switches = SWITCHES | flat_options.SWITCHES | grouped_options.SWITCHES
    said = [*options(call.launch.arguments, switches), *given.settings()]
    values, loss = _values(call, said)
    _refuse(values)
    name = values.path(MODEL)
    place = (program.file, program.line)
    model = given.model or post_training.preset(name, f"{MODEL} is missing", place, values.assumed)
    reached = _world(values, call)
    size = training_calls.accelerators(call, reached, accelerators, values.assumed)
    try:
        training, plan = _plan(values, model, loss, size)
    except ValidationError as error:
        raise malformed(error, program.file) from None
    return Reading(
        framework="accelerate",
        model=model,
        training=training,
        plan=plan,
        nodes=reached.nodes,
        accelerators_per_node=reached.per_node,
        settings=tuple(said),
        unread=tuple(one for name, one in values.settings.items() if name not in values.asked),
        assumed=tuple(dict.fromkeys(values.assumed)),
        written=False,
    )


def _values(call: training_calls.TrainingCall, said: Sequence[Setting]) -> tuple[LaunchValues, str]:
    """The options by their names of today, and the loss; raises Unreadable for other losses."""
    program, known, loss = call.launch.program, {one.name: one for one in said}, RL
    flat = flat_options.launches(call.launch)
    if flat:
        loss = flat_options.loss_of(call.launch)
        known = flat_options.renamed(said, loss)
    elif grouped_options.launches(call.launch):
        loss = flat_options.loss_of(call.launch)
        known = grouped_options.renamed(said, loss)
    if not loss:
        text = program.text.rsplit("/", 1)[-1]
        raise program.unreadable(f"the loss of {text} cannot be planned: only sft, dpo and reward")
    notes = [*call.notes, *((APART,) if flat_options.generates(known) else ())]
    values = LaunchValues(known, program.file, notes)
    if flat and not flat_options.is_its_own(call.launch):
        name = program.text.rpartition("/")[2]
        values.assume(f"{name} is no program of OpenRLHF: costed as training on the next token")
    if flat and not values.has("--bf16", "--fp16", "--ds.param_dtype"):
        values.assume("--bf16: not given, plans have no fp32 training, bf16 assumed")
    values.has("--flash_attn")
    return values, loss


def _plan(
    values: LaunchValues, model: ModelSpec, loss: Any, size: int
) -> tuple[TrainingSpec, ParallelPlan]:
    """The training and the plan on so many accelerators."""
    length, micro = _passes(values, size)
    # Both sequences of a pair go through one pass.
    pair = 2 if loss in ("dpo", "reward") else 1
    precision = values.choice("--ds.param_dtype", choices=("bf16", "fp16"), default="bf16")
    full = values.boolean("--actor.gradient_checkpointing_enable")
    training = TrainingSpec(
        seq_length=length,
        global_batch_size=values.integer("--train.batch_size", default=128) * pair,
        precision=precision,
        gradient_dtype=values.text("--ds.grad_accum_dtype") or precision,
        gradient_reduce_dtype=precision,
        loss=loss,
        **_adapters(values),
    )
    return training, ParallelPlan(
        dp=size,
        zero_stage=values.integer("--ds.zero_stage", default=2, least=0, most=3),
        micro_batch_size=micro * pair,
        recompute="full" if full else "none",
        recompute_num_layers=model.num_layers if full else 0,
        offload_optimizer=values.boolean("--ds.adam_offload"),
        attention_kernel=KERNELS.get(values.text("--ds.attn_implementation") or "", "flash2"),
        cross_entropy="unfused",
        runtime="deepspeed",
    )


def _world(values: Values, call: training_calls.TrainingCall) -> World:
    """The processes: those that Ray starts for the policy, or the launcher."""
    if MARK not in values.settings:
        return training_calls.world(call.launch)
    nodes = values.integer("--actor.num_nodes", default=1, most=DEGREE)
    each = values.integer(MARK, default=8, most=DEGREE)
    return World(nodes, each, nodes * each)


def _adapters(values: Values) -> dict[str, Any]:
    """The fields of adapters, by the older options alone."""
    rank = values.integer("--lora_rank", default=0, least=0)
    packed = values.boolean("--load_in_4bit")
    if not rank:
        return {}
    listed = values.settings.get("--target_modules")
    values.has("--target_modules", "--lora_alpha")
    return {
        "lora_rank": rank,
        "lora_targets": tuning.targets(values, listed.value if listed else "all-linear"),
        "lora_dropout": values.probability("--lora_dropout"),
        "frozen_dtype": "nf4" if packed else "as trained",
    }


def _refuse(values: Values) -> None:
    """Raises Unreadable where something else than all weights of the policy is trained."""
    for name, why in UNPLANNED.items():
        one: Setting | None = values.settings.get(name)
        values.has(name)
        if one is not None and str(one.value) not in ("0", "1", "None", ""):
            raise one.unreadable(f"{name} {one.value or ''}: {why}, which is not read")


def _passes(values: Values, ranks: int) -> tuple[int, int]:
    """Tokens of the longest sequence, and how many of these a pass has."""
    length = flat_options.length(values, values.settings)
    if length is None or values.has("--data.max_len"):
        length = values.integer("--data.max_len", default=2048)
    micro = values.integer("--train.micro_batch_size", default=1)
    if values.boolean("--train.dynamic_batch_enable"):
        tokens = values.integer("--train.max_tokens_per_gpu", default=16192)
        share = values.integer("--train.batch_size", default=128) // ranks
        micro = post_training.sequences(tokens, length, max(share, 1))
        values.assume(f"passes of {tokens} tokens are costed as {micro} of the longest sequences")
    return length, micro

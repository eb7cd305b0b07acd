"""The FSDP actor of verl's launches: a sharded transformers model, with Ulysses."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.documents.answer import Reason
from planner.frameworks import training_calls, verl_overrides
from planner.frameworks.accelerate.settings import FOREACH
from planner.frameworks.given_values import malformed
from planner.frameworks.launch_files import given_with
from planner.frameworks.read_results import Reading, Refusal
from planner.frameworks.verl_overrides import ACTOR, MODEL, Overrides

FSDP = ACTOR + "fsdp_config."
ULYSSES = ACTOR + "ulysses_sequence_parallel_size"
OFFLOADS = (FSDP + "param_offload", FSDP + "optimizer_offload")
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}


def read(
    call: training_calls.TrainingCall, files: Mapping[str, str], accelerators: int | None
) -> Reading:
    """The specs and the plan of a call's overrides.  Raises Unreadable."""
    given = given_with(files)
    said, notes = Overrides(call.launch, given), [*call.notes, verl_overrides.NOTE_APART]
    model = verl_overrides.model(said, given, notes)
    verl_overrides.by_cluster(said, accelerators, notes)
    world, sizes = verl_overrides.world(said), verl_overrides.sizes(said, ULYSSES, (), notes)
    total, cp = world.accelerators or 1, said.positive_int(ULYSSES, 1)
    full = said.is_true(MODEL + "enable_gradient_checkpointing", default=True)
    precision = DTYPES.get(said.text(FSDP + "dtype", "bfloat16"), "bf16")
    if said.text(FSDP + "model_dtype", "fp32") not in ("fp32", "float32"):
        notes.append("weights and optimizer states are costed in fp32, the default")
    if [key for key in OFFLOADS if said.is_true(key)]:
        notes.append(verl_overrides.NOTE_OFFLOADED)
    shards = said.text(FSDP + "fsdp_size", "-1")
    whole = shards == "-1" or said.positive_int(FSDP + "fsdp_size") >= total
    try:
        training = TrainingSpec(
            seq_length=sizes.length,
            global_batch_size=sizes.batch,
            precision=precision,
            gradient_dtype="fp32",
            gradient_reduce_dtype="fp32",
            **verl_overrides.adapted(said, model, "lora_"),
        )
        plan = ParallelPlan(
            cp=cp,
            cp_kind="a2a",
            dp=max(total // cp, 1),
            dp_shard=0 if whole else int(shards),
            zero_stage=3,
            reshard_after_forward=said.is_true(FSDP + "reshard_after_forward", default=True),
            micro_batch_size=sizes.micro,
            recompute="full" if full else "none",
            recompute_num_layers=model.num_layers if full else 0,
            offload_optimizer=said.is_true(FSDP + "offload_policy"),
            offload_activations=full and said.is_true(MODEL + "enable_activation_offload"),
            attention_kernel="flash",
            cross_entropy="unfused",
            runtime=FOREACH,
        )
    except ValidationError as error:
        raise malformed(error, call.script) from None
    return Reading(
        framework="accelerate",
        model=model,
        training=training,
        plan=plan,
        nodes=world.nodes,
        accelerators_per_node=world.per_node,
        settings=tuple(map(said.setting, said.words)),
        unread=said.unread(given.model is not None),
        assumed=tuple(notes),
        refusals=_refusals(said, total, cp),
        written=False,
    )


def _refusals(said: Overrides, total: int, cp: int) -> tuple[Refusal, ...]:
    """What is wrong with the processes that Ulysses splits a sequence over."""
    if total % cp == 0:
        return ()
    text = f"{total} accelerators are not a multiple of {ULYSSES} {cp}"
    reason = Reason(code="world_size", text=text)
    return (Refusal(reason=reason, setting=said.setting(ULYSSES)),)

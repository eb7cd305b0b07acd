"""Shared by LLaMA-Factory, TRL and Axolotl: one YAML for transformers' Trainer, by accelerate.

accelerate's config selects FSDP 2 or plain replicas; the other keys are those of transformers'
TrainingArguments (5.23), with the same names in all but Axolotl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.catalog.models import hub_name
from cost_models.package_files import table
from cost_models.plans import ParallelPlan, Plans, code
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints import BoolArray, Context, Rule
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.frameworks import accelerate, yaml_files
from planner.frameworks.accelerate import peft, rules, settings, trainers
from planner.frameworks.base import Bundle, Field, Framework, cannot, rule, says, unsupported
from planner.frameworks.devices import other_stack
from planner.frameworks.launch_bundle import Launch
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.rules import HALF_BESIDE_PACKED, PLACEHOLDER, accumulated
from planner.frameworks.unwritten_facts import Missing
from planner.frameworks.yaml_files import Row
from planner.huggingface.export.exporter import config_of

ACCUMULATION = "gradient_accumulation_steps"
NEEDS = Note(
    code="needs",
    text="MODEL is a name on Hugging Face or a folder with weights and a tokenizer; the data set "
    "in config.yaml is a sample.",
)


@dataclass(frozen=True)
class Keys:
    """Names of the keys that all have; half: what a half precision is of where all is trained."""

    micro: str = "per_device_train_batch_size"
    optimizer: str = "optim"
    half: str = "type of activations; weights stay in fp32"


@dataclass(frozen=True)
class FineTuningProgram:
    """A trainer: the parts in which they differ.

    rows: its own keys; paths: bash lines that set variables; program: the bash words that
    accelerate starts, with {task} for sft or dpo; launch_rows: of accelerate's config; keys: of
    what is shared.
    """

    name: str
    title: str
    versions: str
    rows: Callable[[Context, ParallelPlan], Iterator[Row]]
    paths: str
    program: str
    launch_rows: Callable[[Context, ParallelPlan], Iterator[Row]] = settings.launch_rows
    keys: Keys = Keys()

    def render(self, request: PlanRequest, plan: ParallelPlan) -> Bundle:
        """The launch script, accelerate's config, the trainer's YAML and the model's config."""
        c = Context(request.model, request.cluster, request.training)
        documents = {
            "accelerate.yaml": list(self.launch_rows(c, plan)),
            "config.yaml": [*self.rows(c, plan), *shared(c, plan, self.keys)],
        }
        config, keys = settings.config_json(c)
        head = self.launch.head(request, plan)
        written = {name: f"{head}\n{yaml_files.document(rows)}" for name, rows in documents.items()}
        told = (one for name, rows in documents.items() for one in yaml_files.flags(name, rows))
        return self.launch.bundle(
            request,
            plan,
            _missing(c.model),
            flags=(*told, *keys),
            notes=(NEEDS,),
            files={**written, "config.json": config},
            words={"paths": self.paths, "program": self.program.format(task=task(c.training))},
        )

    @property
    def launch(self) -> Launch:
        """How it is started."""
        needs = "A few steps on a sample data set: give config.yaml your own."
        package, template = accelerate.__name__, "trainer.sh.txt"
        return Launch(self.name, self.title, self.versions, package, needs, template)

    def framework(
        self,
        checkpointing: str,
        attention: Field,
        loss: Field,
        *own_rules: Rule,
        instead: Mapping[Rule, Rule] | None = None,
        fields: Mapping[str, Field] | None = None,
        **more: Any,
    ) -> Framework:
        """Accelerate's framework with this trainer; checkpointing: its key for recompute.

        instead: rule that all have -> its own; fields, more: what else is its own.
        """
        fsdp = "fsdp_config.fsdp_activation_checkpointing"
        own = {
            "cp": cannot("samples are packed, and cp drops the positions that separate them", 1),
            "cp_kind": cannot("there is no context parallelism", "all_gather"),
            "micro_batch_size": says(self.keys.micro, ACCUMULATION),
            "recompute": says(
                checkpointing, fsdp, note="whole layers or none", only=("none", "full")
            ),
            "attention_kernel": attention,
            "cross_entropy": loss,
            "compile": says("torch_compile", "dynamo_config.dynamo_backend"),
        }
        shared_rules = ((instead or {}).get(one, one) for one in RULES)
        usual = {
            "losses": ("next_token", "dpo"),
            "training": {"gradient_reduce_dtype": "bf16"},
            "adapters": accelerate.FRAMEWORK.adapters,
        }
        return self.launch.framework(
            (*shared_rules, *own_rules),
            {**accelerate.FIELDS, **own, **(fields or {})},
            self.render,
            self,
            partial_training=PARTIAL_TRAINING,
            before_ampere=accelerate.FRAMEWORK.before_ampere,
            blocks=accelerate.FRAMEWORK.blocks,
            parts=accelerate.FRAMEWORK.parts,
            lacks=accelerate.FRAMEWORK.lacks,
            competes=False,
            **{**usual, **more},
        )

    def read(self, files: Mapping[str, str], accelerators: int | None) -> Reading:
        """The specs and the plan of a launch; raises Unreadable."""
        if trainers.trainer_of(files) is None:
            raise Unreadable(f"no YAML of {self.title} among the files: {', '.join(files)}")
        found = trainers.read(files, accelerators)
        return found.model_copy(update={"framework": self.name})

    def recognises(self, files: Mapping[str, str]) -> bool:
        """Whether its YAML is among the files."""
        found = trainers.trainer_of(files)
        return found is not None and found[0].title == self.title


def _missing(model: ModelSpec) -> Missing:
    """The facts that are left out: one that is loaded by its name on the hub has what it states."""
    missing = accelerate.missing(model)
    return missing._replace(lost=()) if hub_name(model) else missing


def shared(c: Context, plan: ParallelPlan, keys: Keys) -> Iterator[Row]:
    """Keys of TrainingArguments."""
    training = c.training
    if training.loss == "dpo":
        yield keys.micro, plan.micro_batch_size // 2, "pairs of sequences per pass and rank"
    else:
        yield keys.micro, plan.micro_batch_size, "sequences per pass and rank"
    yield ACCUMULATION, *accumulated(c, plan)
    yield training.precision, True, _half(training) or keys.half
    yield keys.optimizer, settings.optimizer(training, plan), "as planned"
    if plan.zero_stage:
        yield (
            "accelerator_config.gradient_accumulation_kwargs.sync_each_batch",
            True,
            "gradients stay sharded between micro-batches",
        )
    if plan.compile:
        yield "torch_compile", True, "torch.compile, layer by layer as accelerate.yaml says"
    yield "learning_rate", 1.0e-5, PLACEHOLDER
    yield "max_steps", 20, "steps of a smoke run"
    yield "output_dir", "output", "folder of checkpoints and logs"


def _half(training: TrainingSpec) -> str:
    """What a half precision is of beside adapters; "" where all is trained."""
    if not training.lora_rank:
        return ""
    frozen = "" if training.frozen_dtype == "nf4" else " and of frozen weights"
    kept = "fp32" if training.master_weights_dtype == "fp32" else "bf16"
    return f"type of activations{frozen}; adapters stay in {kept}"


def task(training: TrainingSpec) -> str:
    """What the trainer is told to do."""
    return "dpo" if training.loss == "dpo" else "sft"


def recomputes(plan: ParallelPlan) -> bool:
    """Whether the trainer, rather than FSDP, recomputes the layers."""
    return plan.recompute == "full" and not plan.zero_stage


# Families with Liger's kernels: MODEL_TYPE_TO_APPLY_LIGER_FN of its monkey_patch.py at ead96b61.
# The Trainer leaves others as they are, without an error.
LIGER_FAMILIES: frozenset[str] = frozenset(table(__package__ or "", "liger.json")["families"])
LIGER = "Liger's kernels for the loss, norms, rotations and activations: pip install liger-kernel"


def _runs_liger(c: Context, p: Plans) -> BoolArray:
    """Its kernels are of Triton, for some families of transformers."""
    family = (config_of(c.model) or {}).get("model_type", "")
    able = family in LIGER_FAMILIES and not other_stack(c.cluster, ("Intel GPU",))
    return np.asarray(able | (p.cross_entropy != code("cross_entropy", "liger")))


_OF_TRAINER: tuple[Rule, ...] = (
    HALF_BESIDE_PACKED,
    unsupported(
        _runs_liger,
        lambda c, p: (
            "Liger's kernels run on CUDA, ROCm and XPU devices, for these families of "
            f"transformers: {', '.join(sorted(LIGER_FAMILIES))}; got "
            f"{(config_of(c.model) or {}).get('model_type', 'none of them')} on "
            f"{c.cluster.groups[0].accelerator.name}"
        ),
    ),
    unsupported(
        lambda c, p: (
            (p.zero_stage == 0) | (c.training.gradient_reduce_dtype == c.training.precision)
        ),
        "accelerate's config makes FSDP reduce gradients in {c.training.precision}; "
        "{c.training.gradient_reduce_dtype} needs a custom script",
    ),
    rule(
        "batch_identity",
        lambda c, p: (c.training.loss != "dpo") | (p.micro_batch_size % 2 == 0),
        "both sequences of a pair are in one pass: micro_batch_size {p.micro_batch_size} is "
        "not even",
    ),
    unsupported(
        lambda c, p: (
            (c.training.loss != "dpo") | (p.cross_entropy == code("cross_entropy", "unfused"))
        ),
        "dpo reads the probabilities of all tokens from whole logits: cross_entropy unfused",
    ),
)
RULES: tuple[Rule, ...] = (*rules.RULES, *_OF_TRAINER)
PARTIAL_TRAINING: tuple[Rule, ...] = tuple(
    one for one in peft.PARTIAL_TRAINING if one != peft.UNPACKED
)


def adapters(c: Context, rank: str, targets: str, packed: Row) -> Iterator[Row]:
    """Keys of LoRA adapters; packed: the row that quantizes frozen weights to four bits."""
    training = c.training
    yield rank, training.lora_rank, "rank of the adapters"
    yield "lora_alpha", 2 * training.lora_rank, "their scale: twice the rank is usual"
    yield targets, list(training.lora_targets), "modules with adapters"
    yield "lora_dropout", training.lora_dropout, "dropout before the adapters"
    if training.frozen_dtype == "nf4":
        yield packed

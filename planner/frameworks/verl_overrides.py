"""Launches of verl: the Hydra overrides that all its actors share.

Keys and defaults are those of verl/trainer/config of January 2026 (b178a3c).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from cost_models.spec import ModelSpec
from planner.frameworks import post_training, training_calls, yaml_files
from planner.frameworks.arguments import to_set
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.lora_settings import adapter_fields
from planner.frameworks.read_results import Setting, Unreadable

TITLE = "verl"
ROOT = "actor_rollout_ref."
ACTOR, MODEL = ROOT + "actor.", ROOT + "model."
PROMPTS = "data.train_batch_size"
MICRO, MINI = ACTOR + "ppo_micro_batch_size_per_gpu", ACTOR + "ppo_mini_batch_size"
# The micro-batch size of all ranks together, which later versions no longer have.
OF_ALL = ACTOR + "ppo_micro_batch_size"
LENGTH = "data.max_response_length"
# Keys of the actor and the model that change neither a step's time nor its memory.
FREE_KEYS = re.compile(
    r"clip_ratio|clip_grad|loss|entropy|kl_|ppo_epochs|shuffle|seed|checkpoint|profiler|"
    r"optim\.(lr|weight|betas|min_lr|total|num_cycles|warmup)|use_mbridge|vanilla_mbridge|"
    r"dist_checkpointing|nccl_timeout|tokenizer|chat_template|trust_remote|external_lib|use_shm|"
    r"use_kl|use_remove_padding|use_torch_compile|strategy|policy_loss|tau_|grad_clip|router_replay|_target_"
)
# The model's path in the configuration that verl ships: a YAML that still has it is that default.
_DEFAULT_MODEL = "~/models/deepseek-llm-7b-chat"
# The section that a YAML of verl has.
_SECTION = re.compile(r"^actor_rollout_ref:", re.MULTILINE)
# Keys with words of a layer in their names that do not change its shape.
SHAPELESS_KEYS = frozenset({"persist_layer_norm"})
NOTE_APART = (
    "only the actor's training is costed, one mini-batch of every prompt's responses per step, "
    "without generation, reference, reward and critic"
)
NOTE_OFFLOADED = (
    "weights, gradients and states offloaded between the phases are on the device in training; "
    "their transfers are not costed"
)


def call(
    files: Mapping[str, str], trains: Callable[[ProgramCall], bool]
) -> training_calls.TrainingCall | None:
    """The call of verl's training in the files, with the YAML that it names; None without one.

    A YAML that says the model and the micro-batches is a training without its call: beside one it
    may hold the defaults.
    """
    own = (one for one in files if _SECTION.search(files[one]) and _DEFAULT_MODEL not in files[one])
    configs = {name: words for name in own if (words := _words(files, name))}
    hints = [ROOT] if not configs else [ROOT, "--config-name"]
    found = training_calls.training_call_if_any(
        files, hints, lambda one: trains(configured(one, files)), TITLE
    )
    if found is not None:
        return replace(found, launch=configured(found.launch, files))
    calls_it = training_calls.is_called(files, lambda one: one.program.text.startswith("verl."))
    for name, words in configs.items() if not calls_it else ():
        alone = ProgramCall(Argument("verl.trainer.main_ppo", name, 1), arguments=words)
        if _is_set_up(words) and trains(alone):
            return training_calls.TrainingCall(alone, name, files)
    return None


def config_name(launch: ProgramCall) -> str:
    """The last part of the YAML that a call names, "" without one."""
    words = [word.text for word in launch.arguments]
    for word, after in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option == "--config-name":
            return (value if equals else after).removesuffix(".yaml") + ".yaml"
    return ""


def configured(launch: ProgramCall, files: Mapping[str, str]) -> ProgramCall:
    """A call with the overrides that the YAML of its --config-name amounts to, before its own."""
    named = config_name(launch)
    at = next((one for one in files if one.rsplit("/", 1)[-1] == named), "")
    if not at or _DEFAULT_MODEL in files[at]:
        return launch
    return replace(launch, arguments=(*_words(files, at), *launch.arguments))


def _words(files: Mapping[str, str], name: str) -> tuple[Argument, ...]:
    """The keys of a YAML as overrides; empty for any other file."""
    if not name.endswith((".yaml", ".yml")):
        return ()
    try:
        settings = yaml_files.read(files[name], name).settings()
    except Unreadable:
        return ()
    return tuple(Argument(f"{one.name}={one.value}", name, one.line) for one in settings)


def _is_set_up(words: Iterable[Argument]) -> bool:
    """Whether a YAML configures a run: verl's defaults leave the size of micro-batches null."""
    stated_keys = {
        key for key, _, value in (word.text.partition("=") for word in words) if value != "null"
    }
    return MODEL + "path" in stated_keys and bool(stated_keys & {MICRO, OF_ALL})


def on_megatron(launch: ProgramCall) -> bool:
    """Whether a call is verl's training with a Megatron actor."""
    texts = [word.text.lstrip("+") for word in launch.arguments]
    return _is_verl(texts) and any(
        text.startswith(f"{ACTOR}megatron.")
        or text == f"{ACTOR}strategy=megatron"
        or (text.startswith(("--config-name", "defaults=")) and "megatron" in text)
        for text in texts
    )


def on_fsdp(launch: ProgramCall) -> bool:
    """Whether a call is verl's training with an FSDP actor, its default."""
    return _is_verl([word.text.lstrip("+") for word in launch.arguments]) and not on_megatron(
        launch
    )


def _is_verl(texts: list[str]) -> bool:
    return any(text.startswith(ROOT) for text in texts)


class Overrides:
    """The overrides by key, the last of each; `asked` records the keys that were looked up."""

    def __init__(self, launch: ProgramCall, given: GivenValues) -> None:
        self.launch, self.words = launch, dict[str, Argument]()
        for word in launch.arguments:
            key, equals, value = word.text.partition("=")
            if key.startswith("~"):
                self.words.pop(key[1:], None)
            elif equals and not key.startswith("-"):
                said = value.strip("'\"")
                self.words[key.lstrip("+")] = Argument(said, word.file, word.line, word.known)
        for name, value in given.values.items():
            if "." in name:
                self.words[name] = Argument(value, "--set", 0)
        self.asked: set[str] = set()

    def text(self, key: str, default: str = "") -> str:
        """The value of a key; raises Unreadable if it has shell variables without a value."""
        self.asked.add(key)
        word = self.words.get(key)
        if word is None or word.text in ("null", "None", ""):
            return default
        if not word.known:
            text = f"{key} is {word.text}, which the files do not say: {to_set(word.text)}"
            raise Unreadable(text, word.file, word.line)
        return word.text

    def known(self, key: str) -> bool:
        """Whether the key's value is in the files."""
        return key in self.words and self.words[key].known

    def is_true(self, key: str, default: bool = False) -> bool:
        return self.text(key, str(default)).lower() == "true"

    def positive_int(self, key: str, default: int | None = None) -> int:
        """The value of a key; raises Unreadable where it is no whole number from 1."""
        text = self.text(key, "" if default is None else str(default))
        if not re.fullmatch(r"[1-9]\d{0,8}", text):
            word = self.words.get(key, self.launch.program)
            got = f"must be a whole number from 1, got {text[:80]!r}" if text else "is missing"
            raise word.unreadable(f"{key} {got}")
        return int(text)

    def setting(self, key: str, name: str = "") -> Setting:
        word = self.words[key]
        return Setting(name=name or key, value=word.text, file=word.file, line=word.line)

    def unread(self, named: bool) -> tuple[Setting, ...]:
        """The keys of the actor and the model that were not looked up.

        named: whether the model is given.  Raises Unreadable if one may change what is trained.
        """
        found = [
            self.setting(key)
            for key in self.words
            if key.startswith((ACTOR, MODEL))
            and key not in self.asked
            and not FREE_KEYS.search(key)
        ]
        post_training.refuse_shapes(found, named, SHAPELESS_KEYS)
        return tuple(found)


def sizes(
    overrides: Overrides, context: str, splits: Iterable[str], notes: list[str]
) -> post_training.Sizes:
    """The sequence length and the batch sizes of a step.

    context: the key of the context-parallel degree; splits: the keys of the other degrees that
    split a replica.
    """
    if overrides.is_true("trainer.val_only"):
        raise overrides.words["trainer.val_only"].unreadable("it evaluates, and trains nothing")
    longest = sum(_longest(overrides, one) for one in ("prompt", "response"))
    notes.append(f"every sequence is as long as the longest prompt and response, {longest} tokens")
    prompts = overrides.positive_int(MINI, 256)
    step = overrides.words[PROMPTS].text if overrides.known(PROMPTS) else "1024"
    if re.fullmatch(r"[1-9]\d{0,8}", step):  # 0: they stream; else an update has at most a step's
        prompts = min(prompts, int(step))
    batch = prompts * overrides.positive_int(ROOT + "rollout.n", 1)
    replica = prod(
        overrides.positive_int(key, 1) for key in (context, *splits) if overrides.known(key)
    )
    if not overrides.is_true(ACTOR + "use_dynamic_bsz"):
        overrides.text(ACTOR + "ppo_max_token_len_per_gpu")
        if overrides.text(OF_ALL) and not overrides.text(MICRO):
            replicas = max((world(overrides).accelerators or 1) // replica, 1)
            return post_training.Sizes(
                longest, batch, max(overrides.positive_int(OF_ALL) // replicas, 1)
            )
        return post_training.Sizes(longest, batch, overrides.positive_int(MICRO))
    overrides.text(MICRO)
    tokens = overrides.positive_int(
        ACTOR + "ppo_max_token_len_per_gpu", 16_384
    ) * overrides.positive_int(context, 1)
    share = max(batch * replica // (world(overrides).accelerators or 1), 1)
    micro = post_training.sequences(tokens, longest, share)
    notes.append(
        f"micro-batches of up to {tokens} tokens are costed as {micro} of the longest sequences"
    )
    return post_training.Sizes(longest, batch, micro)


def _longest(overrides: Overrides, part: str) -> int:
    """The longest prompt or response: that of the engine where it is not the data's."""
    usual = overrides.positive_int(f"data.max_{part}_length", 512)
    key = f"{ROOT}rollout.{part}_length"
    stated = key in overrides.words and "${" not in overrides.words[key].text
    return overrides.positive_int(key, usual) if stated else usual


def by_cluster(overrides: Overrides, accelerators: int | None, notes: list[str]) -> None:
    """Takes the nodes of a cluster where the files leave them to the environment."""
    key, each = "trainer.nnodes", overrides.positive_int("trainer.n_gpus_per_node", 8)
    if accelerators is None or key not in overrides.words or overrides.known(key):
        return
    word = overrides.words[key]
    notes.append(f"{key} is {word.text}, which the files do not say: by the cluster")
    nodes = str(max(accelerators // each, 1))
    overrides.words[key] = Argument(nodes, word.file, word.line)


def world(overrides: Overrides) -> training_calls.World:
    """The accelerators that train."""
    nodes, each = (
        overrides.positive_int("trainer.nnodes", 1),
        overrides.positive_int("trainer.n_gpus_per_node", 8),
    )
    return training_calls.World(nodes, each, nodes * each)


def model(overrides: Overrides, given: GivenValues, notes: list[str]) -> ModelSpec:
    """The model that the user gives, or else the preset that the last folder of its path names.

    Without prediction layers unless they are enabled.
    """
    overrides.asked.add(MODEL + "path")
    if given.model is not None:
        return given.model
    key = MODEL + "path"
    place = overrides.words.get(key, overrides.launch.program)
    name = place.text.rstrip("/") if key in overrides.words else ""
    found = post_training.preset(
        name, f"the model {key} is missing", (place.file, place.line), notes
    )
    kept = found.mtp_num_layers if overrides.is_true(MODEL + "mtp.enable") else 0
    return post_training.with_prediction(found, kept)


def adapted(overrides: Overrides, model: ModelSpec, group: str) -> dict[str, Any]:
    """The TrainingSpec fields for LoRA; empty if all weights train.

    group: prefix of the keys rank, dropout and alpha: `lora_` or `lora.`.  Raises Unreadable.
    """
    prefix, apart = MODEL + group, group.endswith(".")
    rank = overrides.text(prefix + "rank", "0")
    targets = (prefix if apart else MODEL) + "target_modules"
    for key in ("alpha", "type", "merge", "lora_A_init_method", "lora_B_init_method", "dtype"):
        overrides.text(prefix + key)
    stated = overrides.setting(targets) if overrides.text(targets) else None
    dropout = overrides.text(prefix + "dropout", "0.0")
    if not (rank.isdecimal() and re.fullmatch(r"0?\.\d{1,6}|0", dropout)):
        wrong = overrides.setting(prefix + ("dropout" if rank.isdecimal() else "rank"))
        raise wrong.unreadable(f"{wrong.name} is {str(wrong.value)[:40]!r}, not a number")
    return adapter_fields(model, int(rank), stated, float(dropout))

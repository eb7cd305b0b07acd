"""The call of a training program among the files of a launch, and the processes it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from planner.frameworks.bash import Argument, ProgramCall, evaluate, slurm_variables
from planner.frameworks.read_results import Setting, Unreadable

# Name of a training program -> the kind of model, other than a decoder, that it trains.
_OTHER_KINDS = {
    "bert": "an encoder (BERT)", "t5": "an encoder with a decoder (T5)", "ict": "two encoders",
    "retro": "a decoder with a retriever's encoder", "vision": "a vision model",
    "vlm": "a decoder with an image encoder", "llava": "a decoder with an image encoder",
    "mimo": "a decoder with encoders of other kinds of data", "mamba": "a state-space model",
    "hybrid": "a model of attention and other mixers",
}  # fmt: skip
DECODERS_ONLY = "only training of decoders is supported"
NOT_AMONG_FILES = "is not among the given files"
# Options of Megatron-LM and of what grew from it.
OWN_OPTIONS = {
    "--micro-batch-size", "--global-batch-size", "--seq-length", "--hidden-size", "--num-layers",
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--train-iters",
    "--tokenizer-type", "--max-position-embeddings",
}  # fmt: skip
# Those that other trainers have too (SwissArmyTransformer).
SHARED_OPTIONS = {"--train-iters", "--seq-length", "--tokenizer-type"}
# The option by which a call of transformers' Trainer is known.
TRAINER_MARK = "--per_device_train_batch_size"
# What a text that has it, whole or abbreviated, holds.
TRAINER_HINTS = ("--per_device_train", "--per-device-train")
# Options of transformers' TrainingArguments of which the first words alone are enough for argparse.
_ABBREVIATED = ("per_device_train_batch_size", "gradient_accumulation_steps")
_SHORTEST = len(TRAINER_HINTS[0][2:])
_TAKES_ARGUMENTS = re.compile(r"^\s*(?:export\s+)?\w+=[\"']?\$\{?[1-9]|\bgetopts\b", re.MULTILINE)
_VISIBLE = re.compile(r"(\d+|GPU-[\w-]+)(,(\d+|GPU-[\w-]+))*")
_LEAVES = re.compile(
    r"^os\.environ\[[\"']CUDA_VISIBLE_DEVICES[\"']\] *= *[\"']([^\"']*)", re.MULTILINE
)
# Scripts of a job, by their names.
_JOBS = (".slurm", ".sbatch", ".job", ".bash", ".sub", ".pbs")
# Files that hold no commands.
_DATA = (".json", ".yaml", ".yml", ".toml", ".py", ".ipynb", ".txt", ".md", "hostfile", "_env")


@dataclass(frozen=True)
class TrainingCall:
    """The call of a training program, its script, and all files, also those that the script writes.

    places: file that the script writes -> the script and the line where the file's text begins.
    """

    launch: ProgramCall
    script: str
    files: Mapping[str, str]
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def scripts(files: Iterable[str]) -> list[str]:
    """The files that may be bash, the likely ones first."""
    names = [name for name in files if not name.endswith(_DATA)]
    first = next(iter(files), "")  # may be a job's script, which calls the others
    first = first if first.endswith(_JOBS) else "launch.sh"
    return sorted(
        names, key=lambda name: (name not in ("launch.sh", first), not name.endswith(".sh"))
    )


def training_call(
    files: Mapping[str, str], trains: Callable[[ProgramCall], bool], title: str
) -> TrainingCall:
    """The last call of a training program in the first script that has one.

    Raises Unreadable if no script has one.
    """
    for name in scripts(files):
        outcome = evaluate(files, name)
        calls = [call for call in outcome.launches if trains(call)]
        if calls:
            notes = (*outcome.notes, *several(calls, title, name))
            return TrainingCall(calls[-1], name, {**files, **outcome.files}, outcome.places, notes)
    known = ", ".join(files) or "none"
    raise Unreadable(f"no script calls a training program of {title} (files: {known})")


def several(calls: Sequence[ProgramCall], title: str, name: str) -> list[str]:
    """A sentence on calls that differ, of which one is read."""
    count = len({tuple(word.text for word in one.arguments) for one in calls})
    return [f"of {count} calls of {title} in {name} the last one is read"] if count > 1 else []


def training_call_if_any(
    files: Mapping[str, str],
    hints: Iterable[str],
    trains: Callable[[ProgramCall], bool],
    title: str,
) -> TrainingCall | None:
    """As training_call, but None if no script has a call.

    hints: scripts are evaluated only if some file contains one of these texts.
    """
    if not any(hint in text for text in files.values() for hint in hints):
        return None
    try:
        return training_call(files, trains, title)
    except Unreadable:
        return None


def start_of(files: Mapping[str, str], program: str) -> ProgramCall | None:
    """The last call of a Python file, by its path or as a module; None without one."""
    names = {program.rsplit("/", 1)[-1], program.rsplit("/", 1)[-1].removesuffix(".py")}
    for name in scripts(files):
        with suppress(Unreadable):
            for one in reversed(evaluate(files, name).launches):
                path = one.program.text.rsplit("/", 1)[-1]
                if path in names or path.rpartition(".")[2] in names:
                    return one
    return None


def is_called(files: Mapping[str, str], trains: Callable[[ProgramCall], bool]) -> bool:
    """Whether some script has a call of a training program."""
    try:
        training_call(files, trains, "")
    except Unreadable:
        return False
    return True


def with_missing_file_hints(error: Unreadable, found: TrainingCall, arguments: bool) -> Unreadable:
    """The error with hints where the missing value may be found: a file to add, or arguments.

    arguments: whether the user gave the script any.
    """
    hints = [f"{note}: add it" for note in found.notes if NOT_AMONG_FILES in note]
    if not arguments and _TAKES_ARGUMENTS.search(found.files.get(found.script, "")):
        hints.append("the script takes arguments: give them after --")
    asks = " is missing" in error.text or "which the files do not say" in error.text
    if not (asks and hints):
        return error
    return Unreadable(f"{error.text} ({'; '.join(hints)})", error.file, error.line)


def absent_config(launch: ProgramCall, files: Iterable[str]) -> Argument | None:
    """The configuration that a call gives its program alone or by --config, if it is not here."""
    words = launch.arguments
    named = [*words[:1], *(after for word, after in pairwise(words) if word.text == "--config")]
    known = {one.rsplit("/", 1)[-1] for one in files}
    return next(
        (
            one
            for one in named
            if one.text.endswith((".yaml", ".yml", ".json"))
            and one.text.rsplit("/", 1)[-1] not in known
        ),
        None,
    )


def decoder_only(launch: ProgramCall, hybrids: bool = False) -> None:
    """Raises Unreadable if the program trains no decoder.

    hybrids: whether models of attention and other mixers are accepted too.
    """
    name = launch.program.text.rsplit("/", 1)[-1]
    found = re.match(r"pretrain_(bert|t5|ict|retro|vision|vlm|mamba|hybrid|mimo|llava)", name)
    if found and not (hybrids and found[1] in ("mamba", "hybrid")):
        what = _OTHER_KINDS[found[1]]
        raise launch.program.unreadable(f"{name} trains {what}: {DECODERS_ONLY}")


def whole_option(name: str) -> str:
    """The name of the option of TrainingArguments that a name without dashes abbreviates, or it."""
    if len(name) < _SHORTEST:
        return name
    return next((one for one in _ABBREVIATED if one.startswith(name)), name)


def has_trainer_options(launch: ProgramCall) -> bool:
    """Whether a call has transformers' TrainingArguments, whose dashes may be underscores."""
    words = {word.text.partition("=")[0] for word in launch.arguments}
    names = (one[2:].replace("-", "_") for one in words if one.startswith("--"))
    return TRAINER_MARK[2:] in map(whole_option, names)


def training(launch: ProgramCall, mark: str) -> bool:
    """Whether a call is a training: by its program's name, or because it has the option `mark`.

    One of transformers' Trainer has the mark, or is none.
    """
    name = launch.program.text.rsplit("/", 1)[-1]
    if re.search(r"generat|inference|eval|convert|export|prun|quantiz|server|process|merge", name):
        return False
    words = {word.text.partition("=")[0] for word in launch.arguments}
    if "--task" in words and name == "main.py":  # an evaluation of Megatron-LM's
        return False
    of_hub = any(word.startswith("--model_name_or_path") for word in words)
    if mark in words or (re.match(r"pretrain", name) and not of_hub):
        return mark in words or not has_trainer_options(launch)
    # Other names are any trainer's: some option must be one of these frameworks' own.
    own = {word.replace("_", "-") for word in words} & OWN_OPTIONS
    named = re.match(r"train|finetune|sft", name) and not has_trainer_options(launch)
    return bool(named) and bool(own - SHARED_OPTIONS or len(own) > 1 or _hides_options(launch))


def _hides_options(launch: ProgramCall) -> bool:
    """Whether a word that is not known may hold options: it is not the value of one."""
    before = ["", *(word.text for word in launch.arguments)]
    return any(
        word.text.startswith("$") and not word.known and not before[place].startswith("--")
        for place, word in enumerate(launch.arguments)
    )


def options(words: Sequence[Argument]) -> tuple[Setting, ...]:
    """The options among the words of a launcher, with underscores for dashes inside their names."""
    found = []
    for place, word in enumerate(words):
        match = re.fullmatch(r"(--?[A-Za-z][\w-]*)(?:=(.*))?", word.text, re.DOTALL)
        if match is None:
            continue
        dashes = "--" if match[1].startswith("--") else "-"
        name = dashes + match[1].lstrip("-").replace("-", "_")
        value, known = match[2], word.known
        if value is None and place + 1 < len(words) and not words[place + 1].text.startswith("-"):
            value, known = words[place + 1].text, words[place + 1].known
        found.append(
            Setting(name=name, value=value if known else None, file=word.file, line=word.line)
        )
    return tuple(found)


def _count(settings: Sequence[Setting], *names: str) -> int | None:
    """The value of the last of these options; None if it is not a positive whole number."""
    for setting in reversed(settings):
        if setting.name in names:
            text = setting.value if isinstance(setting.value, str) else ""
            return int(text) if re.fullmatch(r"[1-9]\d{0,6}", text) else None
    return None


@dataclass(frozen=True)
class World:
    """Nodes and processes per node; None: the files leave it open."""

    nodes: int | None
    per_node: int | None
    accelerators: int | None


_MPI = re.compile(r"(.*/)?(mpirun|mpiexec(\.hydra)?|aprun|orterun|jsrun)")


def world(launch: ProgramCall) -> World:
    """How many processes the launcher starts, from its options and Slurm's."""
    settings = options(launch.before)
    # srun's options stand before those of the launcher and do not overlap with them by name.
    slurm = slurm_variables((*launch.slurm, *launch.before))
    nodes, per_node = slurm.get("SLURM_NNODES"), None
    if launch.launcher == "torchrun":
        nodes = _of_torchrun(settings, "--nnodes", nodes)
        each = visible(launch) or slurm.get("SLURM_GPUS_PER_NODE")
        per_node = _of_torchrun(settings, "--nproc_per_node", each)
    elif launch.launcher == "msrun":  # MindSpore's: all processes, and those of a node
        total, per_node = _count(settings, "--worker_num"), _count(settings, "--local_worker_num")
        nodes = total // per_node if total and per_node and total % per_node == 0 else None
    elif launch.launcher == "deepspeed":
        seen = visible(launch) or slurm.get("SLURM_GPUS_PER_NODE")
        nodes, per_node = _of_deepspeed(settings, seen)
    elif launch.before and launch.before[-1].text.endswith("llamafactory-cli"):
        nodes, per_node = _of_console(launch, slurm)
    elif (of_mpi := _of_mpi(launch.before)) is not None:
        return of_mpi
    else:
        per_node = _tasks_per_node(slurm, nodes)
    total = nodes * per_node if nodes and per_node else None
    return World(nodes, per_node, total)


def visible(launch: ProgramCall) -> int | None:
    """How many accelerators CUDA_VISIBLE_DEVICES leaves a call; None if it names none."""
    named = launch.environment.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").strip(",")
    return named.count(",") + 1 if _VISIBLE.fullmatch(named) else None


def unlaunched(launch: ProgramCall) -> World:
    """The processes of a program that no launcher starts: as many as accelerators that it sees."""
    each = visible(launch) or 1
    return World(1, each, each)


def of_node(slurm: Mapping[str, int]) -> int | None:
    """The accelerators of each node of a job of Slurm's; those of all, if it has one node."""
    all_of_one = slurm.get("SLURM_GPUS") if slurm.get("SLURM_NNODES", 1) == 1 else None
    return slurm.get("SLURM_GPUS_PER_NODE") or all_of_one


def alone(launch: ProgramCall) -> bool:
    """Whether python itself starts the program, by no launcher, srun or mpirun."""
    first = launch.before[0].text.rsplit("/", 1)[-1] if launch.before else ""
    return launch.launcher == "python" and first.startswith("python")


def devices_set_by_script(program: str) -> dict[str, str]:
    """The environment variable by which a Python script leaves itself some accelerators."""
    found = _LEAVES.search(program)
    return {"CUDA_VISIBLE_DEVICES": found[1]} if found else {}


def _of_console(launch: ProgramCall, slurm: Mapping[str, int]) -> tuple[int | None, int | None]:
    """LLaMA-Factory's command starts a process for each accelerator of the node that it is on."""
    alone = "1" if slurm.get("SLURM_NNODES", 1) == 1 else ""
    seen = visible(launch) or of_node(slurm) or ""
    counts = [
        launch.environment.get("NNODES", alone), launch.environment.get("NPROC_PER_NODE", str(seen))
    ]  # fmt: skip
    known = all(one.isdigit() and 0 < int(one) < 1_000_000 for one in counts)
    return (int(counts[0]), int(counts[1])) if known else (None, None)


def _tasks_per_node(slurm: Mapping[str, int], nodes: int | None) -> int | None:
    """Processes of a node by srun's or the job's numbers of tasks."""
    each, total = slurm.get("SLURM_NTASKS_PER_NODE"), slurm.get("SLURM_NTASKS")
    if each is None and total and nodes and total % nodes == 0:
        return total // nodes
    return each


def _of_deepspeed(settings: Sequence[Setting], seen: int | None) -> tuple[int | None, int | None]:
    """Nodes and accelerators of each by DeepSpeed's counts, or --include host:0,1@host:0,1.

    seen: accelerators of the node that it is started on.
    """
    named = next((one.value for one in settings if one.name in ("--include", "-i")), None)
    hosts = named.split("@") if isinstance(named, str) else []
    counts = {len(host.partition(":")[2].split(",")) for host in hosts if ":" in host}
    nodes, each = (len(hosts), counts.pop()) if len(counts) == 1 else (None, None)
    each = _count(settings, "--num_gpus") or each
    if not _names_hosts(settings):  # it starts on its own machine
        each = each or seen
        nodes = 1 if each else None
    return _count(settings, "--num_nodes") or nodes, each


def _names_hosts(settings: Sequence[Setting]) -> bool:
    return any(one.name in ("--hostfile", "-H", "--include", "-i") for one in settings)


def _of_mpi(words: Sequence[Argument]) -> World | None:
    """The processes that mpirun, mpiexec, aprun or jsrun starts; None if none of them does."""
    place = next((i for i, one in enumerate(words) if _MPI.fullmatch(one.text)), None)
    if place is None:
        return None
    settings = options(words[place:])
    totals = (_count(settings, name) for name in ("-np", "-n", "--np", "--nrs"))
    total = next(filter(None, totals), None)
    if total and words[place].text.endswith("jsrun"):  # of sets of resources, each with tasks
        tasks = (_count(settings, name) for name in ("-a", "--tasks_per_rs"))
        total *= next(filter(None, tasks), 1)
    per_node = (
        _count(settings, name) for name in ("-ppn", "--ppn", "-N", "-npernode", "--npernode")
    )
    each = next(filter(None, per_node), None)
    nodes = total // each if total and each and total % each == 0 else None
    return World(nodes, each if nodes else None, total)


def _of_torchrun(settings: Sequence[Setting], name: str, of_slurm: int | None) -> int | None:
    """A count of torchrun's, whose default is 1; Slurm's if the option holds no number."""
    said = any(one.name == name for one in settings)
    return _count(settings, name) or (of_slurm if said else 1)


def accelerators(
    call: TrainingCall, reached: World, asked: int | None, notes: list[str] | None = None
) -> int:
    """The number of accelerators of the job: that of the files, or else the one asked for.

    notes: is told where the files say the nodes alone.  Raises Unreadable if there is neither.
    """
    if notes is not None and asked and reached.nodes and not reached.accelerators:
        notes.append(
            f"the files say {reached.nodes} nodes and not their processes: "
            f"{asked} accelerators by the cluster"
        )
    size = reached.accelerators or asked
    if size is None:
        word = call.launch.program
        raise word.unreadable(
            "the files do not say how many accelerators run it (nodes and processes per node): "
            "give a cluster"
        )
    return size

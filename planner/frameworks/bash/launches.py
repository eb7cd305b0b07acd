"""Program calls of a script: their arguments and environment, as far as they are known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from planner.frameworks.read_results import Unreadable

_LAUNCHERS = re.compile(r"(?:python[\d.]*|torchrun|deepspeed|accelerate|msrun|tune|composer)")

# Commands that start a program without naming python.
STARTERS = ("srun", "uv", "apptainer", "singularity")
# Commands that start the one behind them, in an environment or in the background.
_WRAPPERS = (
    *STARTERS, "conda", "exec", "mamba", "micromamba", "nice", "nohup", "numactl", "pdm", "pixi",
    "poetry", "setsid", "sudo", "time", "timeout",
)  # fmt: skip
# The words of a trainer's console command -> its tasks.
_COMMANDS = {
    ("megatron",): ("sft", "pt", "rlhf"),
    ("nemo", "llm"): ("pretrain", "finetune"),
    ("tune",): ("run",),
    ("llamafactory-cli",): ("train",),
    ("axolotl",): ("train",),
    ("swift",): ("sft", "pt", "rlhf"),
    ("litgpt",): ("pretrain*", "finetune*"),  # forks add to them
    ("trl",): ("sft", "dpo", "reward", "grpo", "kto", "rloo"),
}  # fmt: skip

# Whole nodes of ABCI and TSUBAME, whose Grid Engine knows them by name -> accelerators of each.
_OF_RESOURCE = {"rt_f": 4, "rt_af": 8, "rt_hf": 8, "node_f": 4}
MOST_VISIBLE = 64  # accelerators of a node
# Slurm's options and the variables that they set.
_SLURM = {
    "--nodes": "SLURM_NNODES",
    "-N": "SLURM_NNODES",
    "--ntasks": "SLURM_NTASKS",
    "-n": "SLURM_NTASKS",
    "--ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "--gpus": "SLURM_GPUS",
    "-G": "SLURM_GPUS",
    "--gpus-per-node": "SLURM_GPUS_PER_NODE",
    "--gres": "SLURM_GPUS_PER_NODE",
    "--array": "SLURM_ARRAY_TASK_ID",  # that of its first job
}


@dataclass(frozen=True)
class Argument:
    """One word of a command and where it was written; its unknown parts are kept as written."""

    text: str
    file: str
    line: int
    known: bool = True

    def unreadable(self, text: str) -> Unreadable:
        """An error at its place."""
        return Unreadable(text, self.file, self.line)


@dataclass(frozen=True)
class ProgramCall:
    """A call of a Python program.

    before: the words up to the program, launchers and their options; program: a path or the
    module; environment: variables given to it whose values are known; slurm: the options of the
    #SBATCH lines above it.
    """

    program: Argument
    before: tuple[Argument, ...] = ()
    arguments: tuple[Argument, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    slurm: tuple[Argument, ...] = ()

    @property
    def launcher(self) -> str:
        """The program that starts the processes: torchrun, deepspeed, composer, python or so."""
        texts = [word.text for word in self.before]
        for text in reversed(texts):
            if text.startswith("torch.distributed."):
                return "torchrun"
            if text.startswith("deepspeed.launcher"):
                return "deepspeed"
            if text == "accelerate.commands.launch":
                return "accelerate"
        names = [name for text in texts if (name := launcher_of(text))]
        return next((name for name in names if name != "python"), names[0] if names else "")


@dataclass
class Outcome:
    """The outcome of a script: the programs it calls, the files it writes, and what was assumed.

    places: written file -> the script and the line where its text begins.
    missing: other scripts that it runs or reads, by their paths, that are not among the files.
    """

    launches: list[ProgramCall] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def launcher_of(text: str) -> str:
    name = text.rsplit("/", 1)[-1]
    if not _LAUNCHERS.fullmatch(name):
        return ""
    return "python" if name.startswith("python") else name


def console_script(names: Sequence[str | None]) -> int:
    """The index of the task in a trainer's console command; 0 for any other command."""
    said = [(name or "").rsplit("/", 1)[-1] for name in names]
    behind = said[:1] and (said[0] in _WRAPPERS or (launcher_of(said[0]) and said[0] != "tune"))
    starts = range(len(said)) if behind else range(1)
    for command, tasks in _COMMANDS.items():
        for start in starts:
            task = start + len(command)
            if tuple(said[start:task]) == command and any(
                fnmatchcase(one, known) for one in said[task : task + 1] for known in tasks
            ):
                return task
    return 0


def started(call: ProgramCall) -> ProgramCall:
    """The call that Axolotl's console command makes in its turn; any other as it is.

    Its options: --launcher, --num-processes, accelerate's or torchrun's behind a --, and the keys
    of its YAML with dashes for underscores (axolotl/cli/main.py).
    """
    if not call.before or call.before[-1].text.rsplit("/", 1)[-1] != "axolotl":
        return call
    words = iter(call.arguments)
    own, kept = list[Argument](), list[Argument]()
    launcher = "accelerate"
    for word in words:
        name, equals, value = word.text.partition("=")
        if word.text == "--":
            own += words
        elif name == "--launcher":
            launcher = value if equals else next(words, word).text
        elif name == "--no-accelerate":
            launcher = "python"
        elif name in ("--num-processes", "--num_processes"):
            own.append(replace(word, text=word.text.replace("-processes", "_processes")))
            own += () if equals else (next(words, word),)
        elif word.text.startswith("--"):
            kept.append(replace(word, text=f"--{name[2:].replace('-', '_')}{equals}{value}"))
        else:
            kept.append(word)
    starts = ("accelerate", "launch") if launcher == "accelerate" else (launcher,)
    before = (*call.before[:-1], *(replace(call.program, text=one) for one in starts), *own)
    program = replace(call.program, text="axolotl.cli.train")
    return replace(call, program=program, before=before, arguments=tuple(kept))


def job_options(text: str) -> Iterator[tuple[str, int]]:
    """The words of #SBATCH lines, with where each line begins, and what #PBS and #$ say in them."""
    for line in re.finditer(r"^[ \t]*#SBATCH[ \t]+(.*)$", text, re.MULTILINE):
        for word in line[1].split(" #", 1)[0].split():
            yield word, line.start()
    for select in re.finditer(r"^#PBS[ \t]+-l[ \t]+select=(\d+)(\S*)", text, re.MULTILINE):
        yield f"--nodes={select[1]}", select.start()
        if each := re.search(r"\bngpus=(\d+)", select[2]):
            yield f"--gpus-per-node={each[1]}", select.start()
    for asked in re.finditer(r"^#\$[ \t]+-l[ \t]+(\w+)=(\d+)\b", text, re.MULTILINE):
        if count := _OF_RESOURCE.get(asked[1].lower()):
            yield f"--nodes={asked[2]}", asked.start()
            yield f"--gpus-per-node={count}", asked.start()


def slurm_variables(options: Sequence[Argument]) -> dict[str, int]:
    """The SLURM_* variables that Slurm's options set, and their numbers.

    options: words of #SBATCH lines, or of srun and sbatch.
    """
    found: dict[str, int] = {}
    for place, option in enumerate(options):
        name, _, value = option.text.partition("=")
        if not value and name[:2] in _SLURM and not name.startswith("--") and len(name) > 2:
            name, value = name[:2], name[2:]
        if not value and place + 1 < len(options):
            value = options[place + 1].text
        if name in _SLURM:
            number = re.search(r"(?:^|gpu:(?:[^:,]*:)?|^[a-z]\w*:)(\d{1,7})(?:$|,|\()", value)
            number = re.match(r"(\d{1,7})", value) if name == "--array" else number
            if number:
                found[_SLURM[name]] = int(number[1])
    if "SLURM_NNODES" in found:
        found["SLURM_JOB_NUM_NODES"] = found["SLURM_NNODES"]
        if "SLURM_NTASKS_PER_NODE" in found:
            found.setdefault("SLURM_NTASKS", found["SLURM_NNODES"] * found["SLURM_NTASKS_PER_NODE"])
    if "SLURM_NTASKS" in found:
        found["SLURM_NPROCS"] = found["SLURM_NTASKS"]
    if "SLURM_GPUS_PER_NODE" in found:
        found["SLURM_GPUS_ON_NODE"] = found["SLURM_GPUS_PER_NODE"]
    return found


def visible_devices(options: Sequence[Argument]) -> str:
    """What Slurm sets CUDA_VISIBLE_DEVICES to; empty where its options ask for no accelerators."""
    found = slurm_variables(options)
    alone = found.get("SLURM_GPUS", 0) if found.get("SLURM_NNODES", 1) == 1 else 0
    each = found.get("SLURM_GPUS_PER_NODE", alone)
    return ",".join(map(str, range(each))) if each <= MOST_VISIBLE else ""

"""Writes bash: flags as arrays with a comment each, and every word quoted against injection."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle, Flag, grouped, one_line
from planner.frameworks.rules import accumulation

# The script's folder, for the files that lie beside it.
BUNDLE = """\
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.\
"""

_CHECKPOINT = "weights and a tokenizer"


def comment(text: str) -> str:
    """One comment line."""
    return f"# {one_line(text)}".rstrip()


def word(text: str) -> str:
    """One word, quoted if bash or a human could read it as several."""
    quoted = shlex.quote(text)
    return f"'{text}'" if quoted == text and "," in text else quoted


def _line(flag: Flag) -> str:
    """An option with its quoted values and why; a value with a variable is taken from that."""
    if flag.variable:
        return f'{word(flag.name)} "${flag.variable}"  # set above'
    return f"{' '.join(map(word, flag.words))}  {comment(flag.why)}"


def array(name: str, flags: Iterable[Flag]) -> str:
    """A bash array of the flags, one per line with its why."""
    lines = [f"  {_line(flag)}" for flag in flags]
    return "\n".join([f"{name}=(", *lines, ")"])


def arrays(flags: Iterable[Flag]) -> tuple[str, tuple[str, ...]]:
    """One array per group of flags, and the names of the arrays."""
    parts = dict(grouped(flags))
    return "\n".join(array(name, group) for name, group in parts.items()), tuple(parts)


def overridable(flags: Iterable[Flag]) -> str:
    """The variables that replace values of flags, with those values as defaults."""
    lines = []
    for flag in flags:
        if flag.variable:
            (default,) = flag.words[1:]
            if not re.fullmatch(r"[\w.+-]+", default, re.ASCII):
                raise ValueError(f"{default!r} cannot be the default of a variable")
            lines.append(f'{flag.variable}="${{{flag.variable}:-{default}}}"  {comment(flag.why)}')
    return "\n".join(lines)


def export(flag: Flag) -> str:
    """An environment variable with its why."""
    (value,) = flag.words[1:]
    return f"export {flag.name}={word(value)}  {comment(flag.why)}"


def checkpoint(hub_name: str) -> str:
    """Lines that set MODEL: by default a name on Hugging Face, or the script's folder.

    hub_name: empty where none is known.  The folder has a config.json, and weights if someone has
    put them there: without them the script stops.
    """
    if hub_name:
        return f'MODEL="${{MODEL:-{hub_name}}}"  # on Hugging Face, or a folder with {_CHECKPOINT}'
    return f"""\
MODEL="${{MODEL:-$BUNDLE}}"  # a name on Hugging Face, or a folder with {_CHECKPOINT}
if [ "$MODEL" = "$BUNDLE" ] && ! compgen -G "$BUNDLE/*.safetensors" > /dev/null; then
  echo "set MODEL: a name on Hugging Face, or a folder with {_CHECKPOINT}" >&2
  exit 1
fi"""


def header(title: str, versions: str, request: PlanRequest, plan: ParallelPlan) -> str:
    """Comments: framework, model, cluster, and the products that give the ranks and the batch."""
    context = Context(request.model, request.cluster, request.training)
    ranks = "1 accelerator" if plan.accelerators == 1 else f"{plan.accelerators} accelerators"
    lines = (
        f"{title} ({versions.removeprefix(title).lstrip()})",
        f"{request.model.name} on {request.cluster.name}: {ranks} = "
        f"tp {plan.tp} x cp {plan.cp} x pp {plan.pp} x dp {plan.dp}",
        f"train_batch {request.training.global_batch_size} = micro_batch {plan.micro_batch_size} "
        f"* accumulation {accumulation(context, plan)} * dp {plan.dp}",
        "Needs data: DATA_PATH and TOKENIZER_MODEL; to train, a learning rate and TRAIN_ITERS too."
        if plan.dynamic_cp and plan.cp > 1
        else "A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.",
    )
    return "\n".join(map(comment, lines))


def one_script(bundle: Bundle) -> str:
    """The bundle as one bash script: its only file, or one that unpacks all files and runs main."""
    if len(bundle.files) == 1:
        return bundle.files[bundle.main]
    lines = [
        "#!/usr/bin/env bash",
        comment(f"{bundle.framework}: {len(bundle.files)} files in one; BUNDLE: where they go."),
        "set -euo pipefail",
        'BUNDLE="${BUNDLE:-$(mktemp -d)}"',
        'mkdir -p "$BUNDLE"',
    ]
    for name, text in bundle.files.items():
        end = "END_OF_FILE"
        while end in text:
            end += "_"
        lines += [f"cat > \"$BUNDLE\"/{word(name)} <<'{end}'", text.removesuffix("\n"), end]
    lines.append(f'exec bash "$BUNDLE"/{word(bundle.main)} "$@"')
    return "\n".join(lines) + "\n"


# What one_script writes: a file by its name, and the call of the main one.
_PART = re.compile(r"""^cat > "\$BUNDLE"/(\S+) <<'(END_OF_FILE_*)'\n(.*?\n)\2$""", re.M | re.S)
_STARTED = re.compile(r"""^exec bash "\$BUNDLE"/(\S+) "\$@"$""", re.M)


def parts(script: str) -> dict[str, str]:
    """The files that a script of `one_script` unpacks, the main one first; none of another."""
    started = _STARTED.search(script)
    found = {shlex.split(name)[0]: text for name, _, text in _PART.findall(script)}
    main = shlex.split(started[1])[0] if started is not None else ""
    if main not in found:
        return {}
    return {main: found.pop(main), **found}


def spread(names: Iterable[str]) -> str:
    """The arrays expanded as arguments, one per line."""
    return " \\\n  ".join(f'"${{{name}[@]}}"' for name in names)


def rendezvous(count: int) -> str:
    """Variables of torchrun's rendezvous; several nodes require them, lest one waits forever."""
    if count == 1:
        lines = """\
# One node.
NNODES="${NNODES:-1}"
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}\""""
    else:
        lines = f"""\
# One call on each of the {count} nodes.
NNODES="${{NNODES:-{count}}}"
NODE_RANK="${{NODE_RANK:?set it to the number of this node, 0 to {count - 1}}}"
MASTER_ADDR="${{MASTER_ADDR:?set it to the address of node 0, the same on every node}}\""""
    return lines + '\nMASTER_PORT="${MASTER_PORT:-29500}"'


def torchrun(processes: int) -> str:
    """The array of torchrun's own arguments, after `rendezvous`."""
    return f"""\
LAUNCH_ARGS=(
  --nnodes "$NNODES"
  --nproc_per_node {processes}
  --node_rank "$NODE_RANK"
  --master_addr "$MASTER_ADDR"
  --master_port "$MASTER_PORT"
)"""

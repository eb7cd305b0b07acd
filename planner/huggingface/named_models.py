"""Models that are given by a name of the hub, or of a folder, only."""

from __future__ import annotations

import re

from cost_models.catalog import models
from cost_models.catalog.names import UnknownName
from cost_models.package_files import table
from cost_models.spec import ModelSpec

# Suffixes of releases that have the same shape as the model without them.
_SUFFIX = re.compile(r"(-(instruct|base|chat|hf|it|pt|bf16|thinking|v0\.[12]|\d{4}))+$")

# Pattern of a name -> name of the model whose shape it has.
_SAME_SHAPE: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), shape)
    for pattern, shape, _ in table("planner.huggingface", "same_shapes.json")["names"]
]
_MULTIMODAL = re.compile(
    r"(^|[-_/])(vl|omni|vision|audio|multimodal|llava\w*|internvl[\d._]*|openvla|pixtral|idefics\d|"
    r"paligemma\d?|videollama\d|minicpm-(llama3-)?[vo]|ovis[\d.]*|glm-4\.\dv)([-_/]|$)",
    re.IGNORECASE,
)
# A pasted file is no name.
_LONGEST = 1_000
# A folder inside a model's own, of one of its checkpoints.
_CHECKPOINT = re.compile(
    r"((final|best|last|latest|merged?|full|hf|huggingface|safetensors|checkpoints?|ckpts?|model|"
    r"weights|global|iter|epoch|step|\d+)([-_.]|$))+",
    re.IGNORECASE,
)
# Where the hub's cache keeps a release of a model.
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/[^/]+$")
# Weights that are stored in integers: no plan has them frozen so.
_QUANTISED = re.compile(r"[-_](awq|gptq|int[48]|w[48]a(8|16))([-_]|$)", re.IGNORECASE)
# A version whose point is a dash: vicuna-v1-3-7b.
_VERSION = re.compile(r"(?<=[-_])(v\d)[-_](\d)(?=[-_]|$)")
# A number of parameters as a word of a name, such as 7b, 8x7b or 350m.
_SIZE = re.compile(r"(\d+x)?\d+(\.\d+)?[bm]")
# Words of models whose shapes are no longer those of the model that they came from.
_RESHAPED = re.compile(
    r"(moe|eagle\d*|medusa|draft|pruned|sheared|merge[dr]?|upscaled|hybrid|\d+(select|of|x)\d+.*)"
)

# Words after a family's name that make it another's: GPT-NeoX is no GPT.
_OTHER_FAMILY = frozenset({"neox", "neo", "j", "moe", "mamba", "bert", "oss"})


# Families without a decoder, or whose decoder reads an encoder's output.
_ENCODERS = re.compile(
    r"(^|[-_/])(flan-?t5|[mb]?yt5|u?m?t5(gemma)?|m?bart|pegasus|ul2|(xlm-)?[a-z]*bert(a|-a)?|electra|"
    r"xlnet|longformer|whisper|minilm|mpnet)([-_.v\d]|$)",
    re.IGNORECASE,
)


def is_encoder(name: str) -> bool:
    """Whether a model of that name is an encoder, or has one, by its family."""
    return bool(_ENCODERS.search(name))


# Words that a folder or a place to fill in has for a model's name, and brackets around one.
_NO_NAME = re.compile(
    r"((your|my|the|path|to|base|pretrained|trained|hf|model|llm|name|or|id|dir|directory|folder|"
    r"here|local|todo|fixme|be|filled|placeholder|change|me|null|none|true|false|x{2,}|\.{3})"
    r"([-_ ]|$))*|[<\[{].*[>\]}]|path[-_ ]to[-_ ].*",
    re.IGNORECASE,
)


def names_none(name: str) -> bool:
    """Whether a text in the place of a model's name is a folder or a placeholder."""
    return bool(_NO_NAME.fullmatch(_folder(name).rsplit("/", 1)[-1]))


def _folder(path: str) -> str:
    """The path without folders of a checkpoint inside one that is named after a model's size."""
    path = path.replace("\\", "/")  # of Windows
    above, _, last = path.rstrip("/").rpartition("/")
    if not above or not _CHECKPOINT.fullmatch(last):
        return path.rstrip("/")
    named = _folder(above)
    return named if any(map(_SIZE.fullmatch, _words(named))) else path.rstrip("/")


def is_open(path: str) -> bool:
    """Whether the last part of a path, by which a model is known, is a variable or a command's."""
    last = path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return "$" in last or ("$(" in path and ")" in last)


def find(name: str, notes: list[str] | None = None) -> ModelSpec:
    """The preset of a name or a folder, whatever separates its words.  Raises UnknownName.

    notes: what is assumed of the model is added there; without it only full names count.
    """
    if len(name) > _LONGEST:
        return models.model(name)
    name = _folder(name).replace("___", ".")  # ModelScope's folders have no dot
    if (cached := _CACHED.search(name)) is not None:
        name = f"{cached[1]}/{cached[2]}"
    above, _, last = name.rpartition("/")
    if above and _SIZE.fullmatch(last.lower()) and _base(f"{above}-{last}") is not None:
        name = f"{above}-{last}"  # llama2/7B: the folder above has the family
    try:
        found = _named(name)
    except UnknownName:
        base = None if notes is None else _base(name.rsplit("/", 1)[-1])
        if notes is None or base is None:
            raise
        found = base
        notes.append(f"{name[-80:]} is taken to have the shape of {base.name}, which it names")
    # Folders say who keeps it, but for the one above, which is a model's owner or family.
    if notes is not None and _MULTIMODAL.search("/".join(name.rsplit("/", 2)[-2:])):
        notes.append(f"only the language model of {name[-80:]} is costed, without its encoder")
    if notes is not None and _QUANTISED.search(name):
        notes.append(f"{name[-80:]} is quantised, but costed with weights in half precision")
    return found


def _named(name: str) -> ModelSpec:
    tried = (name, name.rsplit("/", 1)[-1], name.replace("_", "-"))
    released = _SUFFIX.sub("", tried[1].lower().removeprefix("meta-"))
    for pattern, shape in _SAME_SHAPE:
        released = pattern.sub(shape, released)
    for one in (*tried, released):
        try:
            return models.model(one)
        except UnknownName as error:
            last = error
    bare = {_without_separators(name), _without_separators(released)}
    for entry in models.models():
        if any(
            _without_separators(one.rsplit("/", 1)[-1]) in bare
            for one in (entry.id, *entry.aliases)
        ):
            return entry.spec
    raise last


def _base(name: str) -> ModelSpec | None:
    """The preset whose whole name, with its size, stands among the words of a longer name."""
    words = _words(name)
    reshaped, sizes = {word for word in words if _RESHAPED.fullmatch(word)}, _sizes(words)
    fitting = (
        (len(known), entry.spec)
        for entry in models.models()
        for known in map(_words, (entry.id, *entry.aliases))
        if len(known) > 1
        and sizes
        and _sizes(known) == sizes
        and reshaped <= {*known}
        and _in_order(known, words)
    )
    return max(fitting, key=lambda one: one[0], default=(0, None))[1]


def _sizes(words: list[str]) -> list[str]:
    """The words that say how large a model is: billions, or millions where there are none."""
    found = [word for word in words if _SIZE.fullmatch(word)]
    return [word for word in found if word.endswith("b")] or found


def _words(name: str) -> list[str]:
    last = _VERSION.sub(r"\1.\2", name.rsplit("/", 1)[-1].lower())
    return re.split(r"[-_ ]+", last)


def _in_order(known: list[str], words: list[str]) -> bool:
    """Whether the words stand in that order, next to each other but for the size, which follows."""
    family = [word for word in known if not _SIZE.fullmatch(word)]
    sizes = {word for word in known if _SIZE.fullmatch(word)}
    for i, word in enumerate(words):
        after = [one for one in words[i:] if one not in sizes]
        others = _OTHER_FAMILY.intersection(after[len(family) : len(family) + 1])
        if word == family[0] and after[: len(family)] == family and not others:
            return sizes <= {*words[i:]}
    return False


def _without_separators(name: str) -> str:
    """The name in lower case, without the separators of its words but those between digits."""
    return re.sub(r"(?<!\d)[-_ ]|[-_ ](?!\d)", "", name.lower())

"""Finds options that decide what is trained: layers, widths, experts, attention, frozen weights.

If no reader understands such an option, the model that was read may be wrong, so the files are
refused; any other unknown option is only reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cost_models.package_files import table
from planner.frameworks.read_results import Setting, Unreadable

_TABLE = table("planner.frameworks", "architecture.json")
# Words in an option's name: those of what is built or trained, and those (_ASIDE) that show that
# the option is about something else.
_BUILDS = frozenset(_TABLE["builds"])
# The words of _BUILDS that decide which weights are trained, whatever the model.
_TUNES = frozenset(_TABLE["tunes"])
_ASIDE = re.compile(rf"(?:^|[-_.])(?:{'|'.join(_TABLE['aside'])})(?:$|[-_.])")
_PLANS, _UNPLANNED = (
    re.compile(rf"(?:^|[-_.])(?:{'|'.join(_TABLE[kind])})(?:$|[-_.])")
    for kind in ("plans", "unplanned")
)
# Options of Megatron-LM, MindSpeed and Megatron-DeepSpeed that may change what is trained -> the
# value that changes nothing; None: every value changes it.
OWN: dict[str, str | None] = _TABLE["own"]


_ENABLES = re.compile(r"(?<=\.)((?:is_)?enabled?|active)$")
_IDLE = ("none", "false", "0", "null", "", "no", "1", "0.0", "auto")


def _words(name: str) -> set[str]:
    return set(re.split(r"[-_.]+", name.lower()))


def builds(name: str) -> bool:
    """Whether an option may change what is trained, judged by the words of its name."""
    return bool(_words(name) & _BUILDS) and not _ASIDE.search(name.lower().lstrip("-"))


def refuse(unknown: Iterable[Setting], unread: Iterable[Setting] = (), named: bool = False) -> None:
    """Raises Unreadable with the given options that may change what is trained.

    named: the model is given by its name, so that only the choice of trained weights is open.
    """
    unknown = tuple(unknown)
    idle = _sections_off(unknown)
    found = [
        one
        for one in unknown
        if builds(one.name) and not _is_off(one) and not one.name.startswith(idle)
    ]
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


# Switches of a program's own, and those of them that concern data, files or the screen.
_SWITCH = re.compile(r"(use|enable)_\w+")
_HARMLESS = re.compile(
    r"token|cache|wandb|swanlab|tensorboard|mlflow|reentrant|(^|_)(hf|fast|legacy|auth|shm|cpu)(_|$)|"
    r"modelscope|safetensors|seed|eval|chat|template|prompt|data|log|remote|image|video|audio|"
    r"vision|im_start|special|kl|reward|vllm|generat|remove|orig|ema|early|profil|thinking"
)


# Sizes of a model, in options of a program that names its model.
_SIZES = re.compile(r"(.*_)?(layers?_num|num_(\w+_)?(layers|heads)|(hidden|intermediate)_size)")


def _is_on(name: str, value: object) -> bool:
    """Whether a setting is a switch of a program's own that is on, and may be of the step."""
    on = value is None or str(value).lower() == "true"
    return on and bool(_SWITCH.fullmatch(name)) and not _HARMLESS.search(name)


def unplanned(unread: Iterable[Setting]) -> list[str]:
    """A sentence on the options that no reader looked up and that are of a plan, by their names."""
    named = [(one.name.lower().lstrip("-").replace("-", "_"), one) for one in unread]
    found = [
        one
        for name, one in named
        if _is_on(name, one.value)
        or (_SIZES.fullmatch(name) and not _HARMLESS.search(name) and not _is_off(one))
        or (
            _PLANS.search(name)
            and not _UNPLANNED.search(name)
            and (one.value is None or str(one.value).lower() not in _IDLE)
        )
    ]
    names = ", ".join(dict.fromkeys(map(_shown, found)))
    return [f"not read, and may change time or memory: {names}"] if found else []


def _shown(setting: Setting) -> str:
    value = setting.value if isinstance(setting.value, str) else " ".join(setting.value or ())
    return f"{setting.name} {value[:60]}".rstrip()


def _sections_off(settings: Iterable[Setting]) -> tuple[str, ...]:
    """The sections that a switch of theirs turns off, with the dot behind their names."""
    return tuple(
        one.name[: found.start(1)]
        for one in settings
        if (found := _ENABLES.search(one.name)) is not None and _is_off(one)
    )


def _is_off(setting: Setting) -> bool:
    """Whether a setting's value only switches something off."""
    return setting.value in ("none", "None", "false", "False", "0", "0.0", "null", "")


def _is_plain(setting: Setting, usual: str | None) -> bool:
    return usual is not None and setting.value == usual

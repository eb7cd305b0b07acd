"""`planner rl`: time and memory of one step of GRPO or PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from planner.commands.failures import FINE, NOTHING_FITS
from planner.commands.options import request_options
from planner.commands.server import answered, apart
from planner.commands.shared import (
    LIMITS,
    Json,
    RequestFile,
    RequestOption,
    read_document,
    source_of,
)
from planner.terminal.progress_bar import bar

_PANEL = "The step"


def _option(name: str, what: str, metavar: str = "INT") -> Any:
    return typer.Option(f"--{name}", metavar=metavar, help=what, rich_help_panel=_PANEL)


def _switch(what: str) -> Any:
    return typer.Option(help=what, rich_help_panel=_PANEL, show_default=False)


@request_options(LIMITS)
def rl(
    *,
    request_file: RequestFile = None,
    request: RequestOption = None,
    algorithm: Annotated[str | None, _option("algorithm", "grpo, ppo", "NAME")] = None,
    prompts: Annotated[str | None, _option("prompts", "prompts of a step")] = None,
    samples: Annotated[str | None, _option("samples", "responses to each prompt")] = None,
    prompt_tokens: Annotated[str | None, _option("prompt-tokens", "of a prompt, mean")] = None,
    response_tokens: Annotated[
        str | None, _option("response-tokens", "of a response, mean")
    ] = None,
    generation_tokens_per_s: Annotated[
        str | None,
        _option("generation-tokens-per-s", "response tokens per accelerator, measured", "NUMBER"),
    ] = None,
    generation: Annotated[
        str | None, _option("generation", "same, other: the ranks that generate", "NAME")
    ] = None,
    generation_nodes: Annotated[
        str | None, _option("generation-nodes", "of the cluster, for generation on other ranks")
    ] = None,
    generation_tp: Annotated[
        str | None, _option("generation-tp", "accelerators of an engine; default 1")
    ] = None,
    generation_reserve: Annotated[
        str | None,
        _option("generation-reserve", "share of memory for KV cache; default 0.3", "NUMBER"),
    ] = None,
    reference: Annotated[bool | None, _switch("a frozen copy scores too (KL)")] = None,
    critic_parameters: Annotated[
        str | None, _option("critic-parameters", "ppo: default as the policy", "NUMBER")
    ] = None,
    epochs: Annotated[str | None, _option("epochs", "over the batch; default 1")] = None,
    reward_s: Annotated[
        str | None, _option("reward-s", "for all rewards of a step; default 0", "SECONDS")
    ] = None,
    offload: Annotated[bool | None, _switch("what waits is in host memory")] = None,
    json: Json = False,
    given: Mapping[str, Any],
) -> int:
    """Time and memory of a step of GRPO or PPO: generation, scoring, training, new weights."""
    from planner.reinforcement.compute import step
    from planner.reinforcement.request import parse_reinforcement
    from planner.reinforcement.screen import reinforcement_screen
    from planner.terminal import output

    own = {
        "algorithm": algorithm, "prompts": prompts, "samples": samples,
        "prompt_tokens": prompt_tokens, "response_tokens": response_tokens,
        "generation_tokens_per_s": generation_tokens_per_s, "generation": generation,
        "generation_nodes": generation_nodes, "generation_tp": generation_tp,
        "generation_reserve": generation_reserve, "reference": reference,
        "critic_parameters": critic_parameters, "epochs": epochs, "reward_s": reward_s,
        "offload": offload,
    }  # fmt: skip
    source = source_of(request_file, request)
    document = read_document(source, given, limits=True, keep_plan=True)
    known, names = apart(_with(document, own))
    asked = parse_reinforcement(known)
    asked = asked.model_copy(update={"request": asked.request.model_copy(update=names)})
    with bar("searching"):
        answer = answered(lambda: step(asked), lambda service: service.rl(asked.document()))
    output.show(answer, json, lambda screen: reinforcement_screen(answer, asked))
    return FINE if answer.fits else NOTHING_FITS


def _with(document: dict[str, Any], own: Mapping[str, str | bool | None]) -> dict[str, Any]:
    """The document with the options of the step over it."""
    from planner.documents.loading import scalar
    from planner.reinforcement.document import PART

    given = {
        name: scalar(value.strip(), f"/{PART}/{name}") if isinstance(value, str) else value
        for name, value in own.items()
        if value is not None
    }
    part = document.get(PART)
    if not given or not isinstance(part, dict | None):
        return document
    return {**document, PART: {**(part or {}), **given}}

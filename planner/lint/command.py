"""`planner lint` and `planner read`: launch scripts of users, read and never run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from planner.command import Json
from planner.failures import FINE, NOTHING_FITS

if TYPE_CHECKING:
    from planner.frameworks.reading import Setting
    from planner.lint.findings import ReadAnswer

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="the launch script, and the files that it names"),
]
FrameworkName = Annotated[
    str | None, typer.Option(metavar="NAME", help="whose launch it is; else it is recognised")
]
_CLUSTER = "preset, or shorthand such as 8x8xh100-sxm"


def lint(
    files: Files,
    cluster: Annotated[str, typer.Option(metavar="NAME", help=_CLUSTER)],
    framework: FrameworkName = None,
    json: Json = False,
) -> int:
    """What is wrong with a launch script, and the better plan with the flags to change."""
    from cost_models.parameters import total_parameters
    from planner import output
    from planner.documents import parse_cluster, parse_model
    from planner.lint.lint import lint as linted
    from planner.lint.screen import lint_screen
    from planner.lint.sources import files_at

    texts = files_at(files)
    answer = linted(texts, parse_cluster(cluster), framework)
    model, _ = parse_model(answer.request["model"])
    draw = partial(lint_screen, answer, total_parameters(model), next(iter(texts)))
    output.show(answer, json, draw)
    return NOTHING_FITS if answer.verdict in ("refused", "does not fit") else FINE


def read(
    files: Files,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help=_CLUSTER)] = None,
    framework: FrameworkName = None,
    json: Json = False,
) -> int:
    """What a launch script says, as a request that `planner estimate` takes."""
    from planner import output
    from planner.documents import parse_cluster
    from planner.lint.lint import read as said
    from planner.lint.sources import files_at

    known = None if cluster is None else parse_cluster(cluster)
    answer = said(files_at(files), known, framework)
    if json:
        output.print_json(answer)
    else:
        print(_yaml(answer, cluster), end="")
    return FINE


def _yaml(answer: ReadAnswer, cluster: str | None) -> str:
    """The request as YAML, without what is at its default; comments say what was not understood."""
    import yaml

    from planner.frameworks.shell import comment

    rows = (
        ("assumed", answer.assumed),
        ("unknown", map(_place, answer.unknown)),
        ("refused", (refusal.reason.text for refusal in answer.refusals)),
        ("not part of a plan", map(_place, answer.unread)),
    )
    lines = [comment(f"{title}: {text}") for title, texts in rows for text in texts]
    if cluster is None:
        lines.append("# no cluster is named here: give --cluster to `planner estimate`")
    named = {} if cluster is None else {"cluster": cluster}
    document = {**answer.request, **named}
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return "\n".join([*lines, body])


def _place(said: Setting) -> str:
    return f"{said.name} ({said.file}:{said.line})"

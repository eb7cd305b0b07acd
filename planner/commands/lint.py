"""`planner lint` and `planner read`: launch scripts of users, read and never run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.commands.failures import FINE, NOTHING_FITS
from planner.commands.server import answered
from planner.commands.shared import Json

if TYPE_CHECKING:
    from cost_models.spec import ClusterSpec
    from planner.answers.lint.findings import Better, Finding, LintAnswer, ReadAnswer
    from planner.documents.problems import RequestError
    from planner.frameworks.launch_files import GivenValues
    from planner.frameworks.read_results import Setting

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="the launch script, and the files that it names"),
]
FrameworkName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="framework of the launch; recognised where left out"),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="model, where the files do not state it: name or file"),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="values that the files leave out: a variable (EP=8), a parameter (10=4), an option "
        "(--vocab-size=32000) or a key; several times",
    ),
]
Config = Annotated[
    str | None, typer.Option(metavar="NAME", help="function to read in a file of configurations")
]
Words = Annotated[
    list[str] | None,
    typer.Option("--argument", metavar="WORD", help="of the script; all of them after a --"),
]
_CLUSTER = "preset, or shorthand such as 8x8xh100-sxm"


def lint(
    files: Files,
    cluster: Annotated[str, typer.Option(metavar="NAME", help=_CLUSTER)],
    framework: FrameworkName = None,
    model: Model = None,
    config: Config = None,
    values: Values = None,
    argument: Words = None,
    fix: Annotated[bool, typer.Option("--fix", help="write the changes into the files")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="show the changes as a diff")] = False,
    each: Annotated[
        bool, typer.Option("--each", help="every file is a launch of its own; others are skipped")
    ] = False,
    sarif: Annotated[bool, typer.Option("--sarif", help="print the findings as SARIF")] = False,
    json: Json = False,
) -> int:
    """What is wrong with a launch script, and the better plan with the flags to change."""
    from planner.answers.lint import fixes
    from planner.answers.lint.sarif import sarif as document
    from planner.documents.problems import RequestError
    from planner.inputs.requests.parser import parse_cluster
    from planner.presentation.terminal import output

    known, values_given = parse_cluster(cluster), _given_values(model, config, values, argument)
    answers = []
    for launch in [[file] for file in files] if each else [files]:
        texts, paths = _launch(launch)
        try:
            answer = _linted(texts, known, framework, values_given)
        except RequestError as error:
            if each and _starts_no_framework(error):
                continue
            raise
        answers.append(answer)
        if fix or diff:
            _write(paths, texts, answer.findings, fixes.change_to_write(answer), fix, diff)
        if not (sarif or diff):
            _show(answer, texts, json)
    if sarif:
        output.print_document(document(chain.from_iterable(a.findings for a in answers)))
    verdicts = {answer.verdict for answer in answers}
    return FINE if verdicts.isdisjoint({"refused", "does not fit"}) else NOTHING_FITS


def _launch(files: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The text of a launch's files with those that they name, and where all of them lie."""
    from planner.frameworks.sources import launch_at

    texts, paths = launch_at(files)
    if others := [name for name, path in zip(texts, paths, strict=True) if path not in files]:
        print(f"read too, since the files name them: {', '.join(others)}", file=sys.stderr)
    return texts, paths


def _starts_no_framework(error: RequestError) -> bool:
    """Whether a file is refused since it starts no framework."""
    return any(p.code == "no_framework" for p in error.problems)


def _linted(
    texts: dict[str, str], cluster: ClusterSpec, framework: str | None, values: GivenValues
) -> LintAnswer:
    from planner.answers.lint.lint import lint as linted
    from planner.answers.lint.request import LintRequest

    request = LintRequest(texts, cluster, framework, values)
    answer: LintAnswer = answered(
        lambda: linted(texts, cluster, framework, values),
        lambda service: service.lint(request.document()),
    )
    return answer


def _show(answer: LintAnswer, texts: Mapping[str, str], json: bool) -> None:
    from cost_models.parameters import total_parameters
    from planner.frameworks.given_values import SCRIPTS
    from planner.inputs.requests.models import parse_model
    from planner.presentation.terminal import output
    from planner.presentation.terminal.lint_screen import lint_screen

    trained, _ = parse_model(answer.request["model"])
    scripts = (name for name in texts if name.endswith(SCRIPTS))
    main = next(scripts, next(iter(texts)))
    draw = partial(lint_screen, answer, total_parameters(trained), main)
    output.show(answer, json, draw)


def _write(
    paths: Sequence[str],
    texts: Mapping[str, str],
    findings: Sequence[Finding],
    better: Better | None,
    fix: bool,
    diff: bool,
) -> None:
    """Shows or writes mended files; what must be done by hand goes to standard error."""
    from planner.answers.lint.fixes import difference

    if better is None or not better.changes:
        text = "no better plan of this framework is known here"
        if any(finding.gain for finding in findings):
            text = "what the findings gain is to be changed by hand in files of such a program"
        print(f"nothing is changed: {text}", file=sys.stderr)
        return
    if diff:
        print(difference(texts, {**texts, **better.files}), end="")
    for change in better.by_hand:
        value = f" {change.after}" if change.after else ""
        verb = "remove" if change.after is None else "set"
        instead = f" for {change.misspelled}" * bool(change.misspelled)
        print(f"by hand: {verb} {change.option}{value}{instead}: {change.why}", file=sys.stderr)
    if not better.files:
        text = "no file is changed: these changes cannot be made in its text without breaking it"
        print(text, file=sys.stderr)
    for path, name in zip(paths, texts, strict=True):
        if fix and name in better.files:
            content = Path(path).read_text("utf-8-sig")  # the file, or a script that unpacks it
            Path(path).write_text(content.replace(texts[name], better.files[name]), "utf-8")
            print(f"changed: {path}", file=sys.stderr)
    for stay in better.stays:
        location = f"{stay.file}:{stay.line}" if stay.line else stay.file
        print(f"left: {stay.code} {location} {stay.option}: {stay.text}", file=sys.stderr)


def read(
    files: Files,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help=_CLUSTER)] = None,
    framework: FrameworkName = None,
    model: Model = None,
    config: Config = None,
    values: Values = None,
    argument: Words = None,
    json: Json = False,
) -> int:
    """What a launch script says, as a request that `planner estimate` takes."""
    from planner.answers.lint.lint import read as said
    from planner.answers.lint.request import LintRequest
    from planner.inputs.requests.parser import parse_cluster
    from planner.presentation.terminal import output

    known = None if cluster is None else parse_cluster(cluster)
    texts, _ = _launch(files)
    request = LintRequest(texts, known, framework, _given_values(model, config, values, argument))
    answer = answered(
        lambda: said(request.files, request.cluster, request.framework, request.given),
        lambda service: service.read(request.document()),
    )
    if json:
        output.print_json(answer)
    else:
        print(_yaml(answer, cluster), end="")
    return FINE


def script_arguments(arguments: Sequence[str]) -> list[str]:
    """The words with what follows a -- as --argument, which is the script's and no file."""
    before, dashes, after = list(arguments), "--" in arguments, list[str]()
    if dashes:
        at = before.index("--")
        before, after = before[:at], before[at + 1 :]
    return [*before, *(f"--argument={a}" for a in after)]


def _given_values(
    model: str | None, config: str | None, values: list[str] | None, arguments: list[str] | None
) -> GivenValues:
    from planner.answers.lint.request import parse_given
    from planner.commands.shared import read_model
    from planner.documents.problems import refuse
    from planner.frameworks.launch_files import CONFIG

    values_set = {} if config is None else {CONFIG: config}
    for text in values or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise refuse("/set", "usage", f"NAME=VALUE is needed, got {text[:80]!r}")
        values_set[name] = value
    document = {"set": values_set, "arguments": arguments or []}
    named = {} if model is None else {"model": read_model(model, Path())}
    return parse_given(document | named)


def _yaml(answer: ReadAnswer, cluster: str | None) -> str:
    """The request as YAML, without what is at its default; comments say what was not understood."""
    import yaml

    from planner.frameworks.bash_writer import comment

    rows = (
        ("open", answer.open),
        ("assumed", answer.assumed),
        ("unknown", map(_location, answer.unknown)),
        ("refused", (refusal.reason.text for refusal in answer.refusals)),
        ("not part of a plan", map(_location, answer.unread)),
    )
    lines = [comment(f"{title}: {text}") for title, texts in rows for text in texts]
    if cluster is None:
        lines.append("# no cluster is named here: give --cluster to `planner estimate`")
    named = {} if cluster is None else {"cluster": cluster}
    document = {**answer.request, **named}
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return "\n".join([*lines, body])


def _location(setting: Setting) -> str:
    return (
        f"{setting.name} ({setting.file}:{setting.line})"
        if setting.line
        else f"{setting.name} ({setting.file})"
    )

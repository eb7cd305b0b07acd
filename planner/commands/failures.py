"""Exit codes, and how a command tells what went wrong: as a document, or on standard error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

import typer

from planner.optional_packages import missing

if TYPE_CHECKING:
    from planner.documents.problems import Problem

FINE, OUR_FAULT, BAD_INPUT, NOTHING_FITS = 0, 1, 2, 4

# Errors of the file or pipe behind standard output; the user cannot fix other system errors.
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def guarded(command: Callable[[], int | None], arguments: Sequence[str]) -> int:
    """Run a command; its exit code, whatever happens.  arguments: of the command line."""
    try:
        try:
            code = command() or FINE
        except (BrokenPipeError, typer.Abort):
            raise
        except Exception as error:
            code = _report(error, arguments)
        print(end="", flush=True)
        return code
    except typer.Abort:
        return OUR_FAULT
    except (BrokenPipeError, SystemExit) as exit_error:
        # typer leaves with a SystemExit where a pipe is closed.
        if not isinstance(exit_error, BrokenPipeError) and not isinstance(
            exit_error.__context__, BrokenPipeError
        ):
            raise
        # Whoever read our output has seen enough.
        _discard_output(sys.stdout, sys.stderr)
        return FINE
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        return _cannot_write(error)


def _report(error: Exception, arguments: Sequence[str]) -> int:
    json = "--json" in arguments
    from planner.commands.option_messages import problem_lines
    from planner.documents.problems import ServiceError, internal_document, problem_document
    from planner.presentation.terminal.output import print_document

    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
        return _cannot_write(error)
    if isinstance(error, ServiceError):
        if json:
            print_document(error.document)
        else:
            print(f"{error}.", file=sys.stderr)
        return OUR_FAULT
    problems = _problems(error)
    if problems is None:
        if os.environ.get("PLANNER_DEBUG") == "1":
            raise error
        if json:
            print_document(internal_document())
        name = type(error).__name__
        print(f"planner failed: {name}: {error}".splitlines()[0][:200], file=sys.stderr)
        print("Please report it, with the request; PLANNER_DEBUG=1 shows more.", file=sys.stderr)
        return OUR_FAULT
    if json and problems:
        print_document(problem_document(problems))
    elif problems:
        print("Bad input:", file=sys.stderr)
        for line in problem_lines(problems, arguments):
            print(f"  {line}", file=sys.stderr)
    return BAD_INPUT


def _problems(error: Exception) -> tuple[Problem, ...] | None:
    """The problems of the user's input; None if the error is not caused by the input."""
    from planner.documents.problems import problem, problems_of

    if isinstance(error, typer.TyperException):
        from planner.commands.usage_messages import usage_message

        message = usage_message(error)
        # Without a message the help has been shown in place of an answer.
        return (problem("", "usage", message),) if message else ()
    if lacking := missing(error):
        return (problem("", "missing", lacking),)
    return problems_of(error)


def _cannot_write(error: OSError) -> int:
    _discard_output(sys.stdout)
    print(f"Cannot write the output: {error.strerror}", file=sys.stderr)
    return BAD_INPUT


def _discard_output(*streams: TextIO) -> None:
    """Send further output to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

"""A question of one record: how many tokens a plan trains on in a day.

`python -m tests.planner.questions.tokens_per_day` is the planner that knows it too.
"""

from __future__ import annotations

from typing import Any

from rich.text import Text

from planner.answers.plans import plan_answers
from planner.documents.plan_report import Document
from planner.documents.request import PlanRequest
from planner.questions.question import Question, Tool
from planner.questions.registry import QUESTIONS

DAY_S = 86_400


class TokensPerDay(Document):
    """The tokens of a day without failures."""

    tokens_per_day: float


def tokens_per_day(request: PlanRequest) -> TokensPerDay:
    """The answer for the request's plan.  Raises IllegalPlan."""
    answer = plan_answers.estimate(request, request.named_plan)
    return TokensPerDay(tokens_per_day=answer.estimate.tokens_per_s * DAY_S)


def screen(answer: TokensPerDay, asked: Any, console: Any) -> Text:
    """The answer in a terminal."""
    return Text(f"{answer.tokens_per_day:,.0f} tokens per day")


RECORD = Question(
    "tokens_per_day",
    "/tokens-per-day",
    "How many tokens the request's `plan` trains on in a day.",
    "tests.planner.questions.tokens_per_day:tokens_per_day",
    "estimate",
    command="tokens-per-day",
    screen="tests.planner.questions.tokens_per_day:screen",
    tool=Tool(
        "Say how many tokens a plan trains on in a day.", ("model", "cluster", "training", "plan")
    ),
)


if __name__ == "__main__":
    QUESTIONS[RECORD.name] = RECORD
    from planner.cli import main  # which makes the commands

    main()

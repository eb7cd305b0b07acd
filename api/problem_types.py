"""The kinds of problem the service answers with, each a page at /problems/{slug}."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProblemType:
    """A status with a name of its own: what happened, and what to do about it."""

    status: int
    title: str
    meaning: str
    remedy: str


TYPES: dict[str, ProblemType] = {
    "validation": ProblemType(
        422,
        "Request is not valid",
        "The body was read, and something in it is unknown, out of bounds or contradicts another "
        "part, or a parameter of the address does.",
        "Each of `errors` has a JSON pointer to the value, what was found there, and where there "
        "are few choices which are allowed or were probably meant.",
    ),
    "unsupported-model": ProblemType(
        422,
        "Model cannot be planned",
        "The file is not the config.json of a model this planner knows: another architecture, or "
        "another kind of file.",
        "`errors` says what was found and which model types are known. A model of another type can "
        "be given by its dims, as any of GET /v1/catalog/models.",
    ),
    "idempotency-mismatch": ProblemType(
        422,
        "Idempotency-Key was used for another request",
        "The same key came before with another body.",
        "Take a new key for a new request; keys are forgotten after a day.",
    ),
    "malformed": ProblemType(
        400,
        "Request cannot be read",
        "The body is not JSON in UTF-8, or the call is not proper HTTP.",
        "`detail` says where reading stopped.",
    ),
    "unauthorized": ProblemType(
        401,
        "API key is needed",
        "This service has API keys, and the call came without one of them.",
        "Send `Authorization: Bearer KEY` or `X-API-Key: KEY`.",
    ),
    "forbidden": ProblemType(
        403,
        "Host is not served here",
        "A service without API keys answers only calls to this machine by its own names, so that "
        "no page of another site can reach it through a name it made up.",
        "Call it as localhost, or name further hosts in PLANNER_ALLOWED_HOSTS.",
    ),
    "not-found": ProblemType(
        404,
        "Not found",
        "There is nothing at this address, or it is no longer kept.",
        "Answers are kept until newer ones need the room; the same POST makes the same one again.",
    ),
    "method-not-allowed": ProblemType(
        405,
        "Method is not allowed",
        "The address is right, and does not take this method.",
        "The header Allow says which it takes.",
    ),
    "timeout": ProblemType(
        408,
        "Body came too slowly",
        "The body of the call did not arrive in time.",
        "Send it again; PLANNER_MAX_BODY_S says how long the service waits.",
    ),
    "not-cancellable": ProblemType(
        409,
        "Job is over",
        "The job has already ended, so there is nothing to cancel.",
        "Its result or its reason is at the job's own address.",
    ),
    "conflict": ProblemType(
        409,
        "Not in this state",
        "What was asked for cannot be done to it as it is now.",
        "`detail` says what stands in the way.",
    ),
    "too-large": ProblemType(
        413,
        "Body is too large",
        "The body has more bytes than the service takes.",
        "GET /v1/info says how many that are; PLANNER_MAX_BODY_BYTES sets it.",
    ),
    "unsupported-media-type": ProblemType(
        415,
        "Body is not JSON",
        "The call has no body, or one of another type.",
        "Send JSON, with the header Content-Type: application/json.",
    ),
    "rate-limited": ProblemType(
        429,
        "Too many calls",
        "This key or address has called more often than it may.",
        "Wait for as long as Retry-After says; RateLimit-Remaining says how many calls are left.",
    ),
    "internal": ProblemType(
        500,
        "The planner failed",
        "This is a fault of the planner, not of the request.",
        "Please report it, with the request; `request_id` finds it in the service's log.",
    ),
    "queue-full": ProblemType(
        503,
        "All places are taken",
        "As much is being computed, or waits for it, as the service takes on.",
        "Ask again after as long as Retry-After says.",
    ),
    "unavailable": ProblemType(
        503,
        "Store is not available",
        "The database of answers, saved plans and jobs does not answer or cannot be written.",
        "Plans and estimates work without it; GET /readyz says when it is back.",
    ),
    "run": ProblemType(
        500,
        "The run failed",
        "The processes of a job did not come to their end: the last part of the type says how, and "
        "`log` has their last words.",
        "GET the job's logs. Where a limit ended it, ask for more within those of the service.",
    ),
    "trace": ProblemType(
        500,
        "The trace failed",
        "A rank of a dry run could not be traced, or needed more than it may.",
        "`detail` ends with what its process said.",
    ),
    "cut-off": ProblemType(
        500,
        "The job was cut off",
        "Each server that went about one step of the job ended in the midst of it.",
        "See in the service's log what ends them; then ask again.",
    ),
    "cannot-write": ProblemType(
        500,
        "The step has no room",
        "The files of a job could not be written on the machine that ran it.",
        "Make room in the data folder, and ask again.",
    ),
}
# The type of a status that is raised without one.
OF_STATUS: dict[int, str] = {
    kind.status: slug for slug, kind in reversed(TYPES.items()) if slug != "unavailable"
}

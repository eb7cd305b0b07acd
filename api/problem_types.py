"""The kinds of problem the service answers with, each a page at /problems/{slug}."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProblemType:
    """One type of problem: its status, what happened, and what to do about it."""

    status: int
    title: str
    meaning: str
    remedy: str


TYPES: dict[str, ProblemType] = {
    "validation": ProblemType(
        422,
        "Request is not valid",
        "A field of the body or a parameter of the URL is unknown, out of bounds, or contradicts "
        "another one.",
        "Each of `errors` has a JSON pointer to the value, the value that was found, and, if there "
        "are few choices, those that are allowed or were probably meant.",
    ),
    "over-budget": ProblemType(
        422,
        "The request exceeded its budget",
        "The request used all the CPU seconds or all the memory of its budget, and was stopped.",
        "`detail` says how to narrow the request; `best` is the best plan found until then, if "
        "there was one. The parameters `cpu_s` and `memory_mib` set the budget, up to "
        "PLANNER_MAX_QUESTION_CPU_S and PLANNER_MAX_QUESTION_MIB.",
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
        "The same key was used before with another body.",
        "Use a new key for each new request; keys expire after a day.",
    ),
    "malformed": ProblemType(
        400,
        "Request cannot be read",
        "The body is not JSON in UTF-8, or the request is not valid HTTP.",
        "`detail` says where parsing stopped.",
    ),
    "unauthorized": ProblemType(
        401,
        "API key is needed",
        "This service has API keys, and the call came without one of them.",
        "Send `Authorization: Bearer KEY` or `X-API-Key: KEY`.",
    ),
    "forbidden": ProblemType(
        403,
        "Not allowed",
        "The key's role does not permit this, or the resource belongs to another caller; or a "
        "service without API keys was called under another host name, or from a page of another "
        "site.",
        "`detail` says which. PLANNER_API_KEYS_SHA256 sets keys and roles, PLANNER_ALLOWED_HOSTS "
        "further host names of the service.",
    ),
    "not-found": ProblemType(
        404,
        "Not found",
        "There is nothing at this address, or it is no longer kept.",
        "Answers are kept until newer ones need the space; the same POST computes one again.",
    ),
    "method-not-allowed": ProblemType(
        405,
        "Method is not allowed",
        "The resource exists, but does not support this method.",
        "The header Allow lists the methods that it supports.",
    ),
    "timeout": ProblemType(
        408,
        "Body arrived too slowly",
        "The body of the request did not arrive in time.",
        "Send it again; PLANNER_MAX_BODY_S says how long the service waits.",
    ),
    "not-cancellable": ProblemType(
        409,
        "Job has ended",
        "The job has already ended, so there is nothing to cancel.",
        "GET the job for its result or the reason of its failure.",
    ),
    "conflict": ProblemType(
        409,
        "Not in this state",
        "The operation is not possible in the present state of the resource.",
        "`detail` says why.",
    ),
    "too-large": ProblemType(
        413,
        "Body is too large",
        "The body is larger than the service accepts.",
        "GET /v1/info has the limit; PLANNER_MAX_BODY_BYTES sets it.",
    ),
    "headers-too-large": ProblemType(
        431,
        "Headers are too large",
        "The request line and the headers together have more bytes than the service reads.",
        "Send fewer or shorter headers; long values belong into the body.",
    ),
    "unsupported-media-type": ProblemType(
        415,
        "Body is not JSON",
        "The request has no body, or one of another media type.",
        "Send JSON, with the header Content-Type: application/json.",
    ),
    "rate-limited": ProblemType(
        429,
        "Too many calls",
        "This key or address has exceeded its rate limit.",
        "Wait for the time in Retry-After; RateLimit-Remaining is the number of calls left.",
    ),
    "internal": ProblemType(
        500,
        "The planner failed",
        "This is a bug of the planner, not a problem of the request.",
        "Please report it, with the request; `request_id` finds it in the service's log.",
    ),
    "queue-full": ProblemType(
        503,
        "The service is busy",
        "All workers are busy and the queue is full.",
        "Try again after the time in Retry-After.",
    ),
    "unavailable": ProblemType(
        503,
        "Store is not available",
        "The database of answers, saved plans and jobs does not answer or cannot be written.",
        "Plans and estimates work without it; GET /readyz tells when it is available again.",
    ),
    "run": ProblemType(
        500,
        "The run failed",
        "The processes of a job failed: the last part of the type says how, and `log` has the end "
        "of their log.",
        "GET the job's logs. If a limit stopped it, request a higher one within the service's.",
    ),
    "trace": ProblemType(
        500,
        "The trace failed",
        "A rank of a dry run could not be traced, or exceeded a limit.",
        "`detail` ends with the output of its process.",
    ),
    "cut-off": ProblemType(
        500,
        "The job was cut off",
        "Every server that ran one step of the job stopped before the step was done.",
        "The service's log says why they stopped; then start the job again.",
    ),
    "cannot-write": ProblemType(
        500,
        "No space for the step's files",
        "The files of a job could not be written on the machine that ran it.",
        "Free space in the data folder, and start the job again.",
    ),
}
# The type of a status that is raised without one.
OF_STATUS: dict[int, str] = {
    kind.status: slug for slug, kind in reversed(TYPES.items()) if slug != "unavailable"
}

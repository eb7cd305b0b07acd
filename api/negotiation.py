"""The media type that a call accepts (RFC 9110, section 12.5.1)."""

from __future__ import annotations

from fastapi import Request

JSON = "application/json"
CSV = "text/csv"
TRACE = "application/vnd.chrome-trace+json"
ZIP = "application/zip"


def preferred_media_type(request: Request, *offered: str) -> str:
    """The offered media type that the call likes most; the first one where it does not say."""
    likes: dict[str, float] = {}
    for part in request.headers.get("accept", "").lower().split(",")[:50]:
        name, *parameters = (field.strip() for field in part.split(";"))
        likes[name] = _quality(parameters)

    def liked(media_type: str) -> float:
        family = media_type.split("/")[0] + "/*"
        return next((likes[n] for n in (media_type, family, "*/*") if n in likes), 0.0)

    return max(offered, key=liked)  # of equals the first


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0

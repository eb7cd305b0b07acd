"""What this service is and takes."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api.settings import Settings
from planner.answers.inventory import info as about
from planner.answers.pipelines.timeline import MOST_ACTIONS
from planner.documents import loading

router = APIRouter(tags=["info"])


@router.get("/info")
def info(request: Request) -> about.Info:
    """Version, what this machine can do, and the limits on a call."""
    settings: Settings = request.app.state.settings
    return about.info(
        {
            "max_body_bytes": settings.max_body_bytes,
            "max_values": loading.MAX_NODES,
            "max_depth": loading.MAX_DEPTH,
            "max_string_characters": loading.MAX_STRING,
            "max_concurrent_searches": settings.max_concurrency,
            "max_timeline_actions": MOST_ACTIONS,
        }
    )

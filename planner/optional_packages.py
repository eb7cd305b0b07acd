"""Packages that come with an extra, and what to do where one is missing."""

from __future__ import annotations

# By module; what planning itself imports is always installed.
EXTRAS = {
    **dict.fromkeys(
        (
            "alembic", "anyio", "dbos", "fastapi", "h11", "opentelemetry", "prometheus_client",
            "psycopg", "sqlalchemy", "starlette", "structlog", "uvicorn",
        ),
        "serve",
    ),
    "mcp": "mcp",
}  # fmt: skip


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def missing(error: Exception) -> str | None:
    """Which package of which extra an import lacks; None where it is something else."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in EXTRAS:
        return None
    return f"{module} is not installed: pip install 'parallel-planner[{EXTRAS[module]}]'"

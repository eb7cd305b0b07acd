"""The OpenAPI description of a log that a site learns from."""

from __future__ import annotations

from typing import Any

_TABLE = """\
id,gpu,n_gpus,gpus_per_node,model,stack,seq_len,global_batch,tp,pp,dp,micro_batch,zero_stage,\
precision,recompute,iteration_time_s
ours-1,H100 SXM 80GB,16,8,llama-3.1-8b,Megatron-LM,8192,128,2,1,8,1,1,bf16,none,6.4
"""
SITE_EXAMPLES: dict[str, Any] = {
    "short": {
        "summary": "A row of a table, shown and not kept",
        "value": {"log": _TABLE, "cluster": "2x8xh100-sxm", "keep": False},
    }
}


def request(asked: dict[str, Any]) -> dict[str, Any]:
    """What POST /v1/sites/{name}/runs takes, given the schema of a request."""
    own = {name: asked["properties"][name] for name in ("model", "cluster")}
    texts = {
        "log": "the text of a training log, or a CSV with the columns of the accuracy table",
        "name": "name of the log; default: log",
        "script": "the launch script, for what the log leaves open",
    }
    settings = "values that log and script leave open, by path, such as plan.recompute"
    return {
        "type": "object",
        "required": ["log", "cluster"],
        "additionalProperties": False,
        "properties": {
            **{name: {"type": "string", "description": text} for name, text in texts.items()},
            **own,
            "settings": {"type": "object", "description": settings},
            "keep": {"type": "boolean", "default": False},
        },
    }

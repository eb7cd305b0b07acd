"""Lit-GPT before its norms took fp32 (24 October 2023, "Half precision fixes" 6178c7cc)."""

from dataclasses import replace

from cost_models.runtimes import litgpt

RUNTIME = replace(
    litgpt.RUNTIME,
    name="litgpt-2023",
    title="Lit-GPT of 2023: norms in half precision",
    version="Lit-GPT before 24 October 2023, bitsandbytes 0.41",
    norms_in_fp32=0.0,
)

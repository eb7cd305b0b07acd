"""LLM Foundry: Composer with FSDP, read from its YAML and the call that names it."""

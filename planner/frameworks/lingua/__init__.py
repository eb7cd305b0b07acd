"""Meta Lingua: FSDP 2, read from its YAML and the call that names it."""

"""prime-rl: whole steps on FSDP 2 and vLLM, written and their training part read."""

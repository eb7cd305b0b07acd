"""AReaL: whole steps on Megatron-Core and SGLang, written and their training part read."""

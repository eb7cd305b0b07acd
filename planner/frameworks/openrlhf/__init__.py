"""OpenRLHF: whole steps on DeepSpeed and vLLM, written and their training part read."""

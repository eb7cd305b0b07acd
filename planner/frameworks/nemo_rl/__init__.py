"""Runs of NeMo-RL: the training of the policy, with Megatron-Core or with torch's DTensor."""

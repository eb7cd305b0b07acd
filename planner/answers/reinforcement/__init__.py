"""Steps of reinforcement learning: planned training, and generation at a stated throughput."""

"""Steps of reinforcement learning: training as planned, beside generation as stated."""

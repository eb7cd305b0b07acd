"""The code that each rank of a real run executes: steps, measurements, gradients."""

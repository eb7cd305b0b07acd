"""What a rank of a real run does: its step, its measurements, its gradients."""

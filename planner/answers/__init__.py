"""Every kind of answer: plans first, then what else is asked about a training."""

"""What fits: ways to fine-tune a model on given cards, by length of sequence."""

"""How the answer moves with each input, and where the best plan changes."""

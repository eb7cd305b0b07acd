"""A plan scaled down to this machine, with the structure it has at full scale."""

"""What to rent: each kind of accelerator in each number, with days, cost and energy."""

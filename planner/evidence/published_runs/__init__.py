"""Published runs as cases: specs and a plan for each row, with every assumption it took."""

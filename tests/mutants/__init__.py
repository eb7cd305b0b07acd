"""Places broken on purpose, each with the test that must notice."""

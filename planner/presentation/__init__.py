"""Answers as people see them: text, pictures, notebooks."""

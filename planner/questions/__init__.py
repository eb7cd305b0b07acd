"""What the planner can be asked: a record for each question, and the functions that answer.

The service, its description, the client, the tools for coding agents and the command line are made
from these records.
"""

"""Reads trainings of Meta Lingua; its files are not written."""

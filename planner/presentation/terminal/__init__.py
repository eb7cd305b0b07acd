"""Answers on a terminal: screens, tables and bars."""

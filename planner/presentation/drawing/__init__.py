"""Timelines as pictures: terminal text, SVG, HTML, PNG, and a trace for Perfetto.

Each renderer takes a `planner.answers.pipelines.timeline.TimelineAnswer` and returns text or bytes;
none of them writes a file.
"""

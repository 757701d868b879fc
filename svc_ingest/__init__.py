"""Ingest: accepts events from producers, recognises repeats, and appends what is accepted to the event lanes."""

"""Benchmarks: each is one command, prints a table, writes JSON, and ends by itself."""

"""Stores of delivery by the scheme of their URL."""

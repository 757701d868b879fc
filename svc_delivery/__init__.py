"""Keeps every recipient's inbox and brings notifications to whoever is connected."""

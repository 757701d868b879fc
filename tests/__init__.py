"""The tests of Heliograph."""

"""The `heliograph` command: runs the mesh on one machine and talks to it."""

"""All services in one process on a virtual clock; one seed says what happens. The real code, on simulated machines."""

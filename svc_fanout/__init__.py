"""svc_fanout: turns one event into many deliveries: who gets it, on which channels, or why not."""

"""svc_presence: which sessions a recipient has now, on which gateway node, and which nodes live."""

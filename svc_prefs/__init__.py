"""svc_prefs: what recipients want, and the decisions that follow from it."""

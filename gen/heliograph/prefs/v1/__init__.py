"""Package heliograph.prefs.v1 of the contract. Generated, do not edit."""

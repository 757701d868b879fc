"""Package heliograph.prefs of the contract. Generated, do not edit."""

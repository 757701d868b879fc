"""Package heliograph.presence of the contract. Generated, do not edit."""

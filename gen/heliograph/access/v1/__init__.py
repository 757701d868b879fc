"""Package heliograph.access.v1 of the contract. Generated, do not edit."""

"""Package heliograph.type.v1 of the contract. Generated, do not edit."""

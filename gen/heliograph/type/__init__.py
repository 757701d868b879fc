"""Package heliograph.type of the contract. Generated, do not edit."""

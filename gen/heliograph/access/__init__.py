"""Package heliograph.access of the contract. Generated, do not edit."""

"""Package heliograph.delivery of the contract. Generated, do not edit."""

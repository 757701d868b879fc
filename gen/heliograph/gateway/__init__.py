"""Package heliograph.gateway of the contract. Generated, do not edit."""

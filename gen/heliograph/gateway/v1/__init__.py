"""Package heliograph.gateway.v1 of the contract. Generated, do not edit."""

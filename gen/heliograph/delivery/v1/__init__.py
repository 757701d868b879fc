"""Package heliograph.delivery.v1 of the contract. Generated, do not edit."""

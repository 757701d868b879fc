"""Package heliograph.presence.v1 of the contract. Generated, do not edit."""

"""Package heliograph.fanout.v1 of the contract. Generated, do not edit."""

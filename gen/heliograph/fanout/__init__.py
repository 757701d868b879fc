"""Package heliograph.fanout of the contract. Generated, do not edit."""

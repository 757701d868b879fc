"""Package heliograph.ingest of the contract. Generated, do not edit."""

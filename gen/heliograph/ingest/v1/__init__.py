"""Package heliograph.ingest.v1 of the contract. Generated, do not edit."""

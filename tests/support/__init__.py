"""What tests share: waiting, clusters, clients, builders. It must not hold assertions about one feature."""

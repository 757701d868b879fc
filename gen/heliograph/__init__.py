"""Package heliograph of the contract. Generated, do not edit."""

"""The subcommands, by what they are about. Each module registers its own and imports what it needs when called."""

"""Everything that runs a network: build, train, encode, predict."""

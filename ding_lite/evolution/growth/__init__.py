"""Growth and shrinking of networks: layers, convolutions, and where their parameters lie."""

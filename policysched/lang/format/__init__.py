"""The formatter: prints a syntax tree in the canonical layout of `policysched fmt`."""

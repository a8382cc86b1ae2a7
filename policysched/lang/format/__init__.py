"""Printing: a syntax tree as the one text that `policysched fmt` writes."""

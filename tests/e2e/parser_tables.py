"""The fork server imports this: each worker that checks policies would compute the tables of the parser, for 0.2 s of CPU."""

from policysched.lang.parse.grammar import lark_parser

lark_parser()

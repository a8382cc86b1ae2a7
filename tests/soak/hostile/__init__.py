"""A hostile tenant beside a friendly one on a real control plane: `make soak-hostile`.

bounds.py       what the tenant may do, and how often
attacks.py      what a tenant, a team or a client on the network tries, and how it is undone
friendly.py     creates plain pods and times each until a third party's watch shows it bound
latencies.py    these times, and the scheduler's part of them by the API server's audit log
planted.py      faults that the soak has to find
long_pieces.py  what the main loop of the scheduler does in long pieces
report.py       the table and the verdict
"""

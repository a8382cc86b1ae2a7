"""Compare policysched with kube-scheduler: the same control plane, nodes and pods, one after the
other in one run.

    world.py     creates nodes and pending pods, and deletes them
    watching.py  observes each bind and its event from outside, and the CPU and memory of a process
    rounds.py    runs one scheduler's turn
    report.py    table, page and plot

`python -m tests.bench.beside --nodes 1000 --pods 2000`. Only ratios are meaningful: etcd, the API
server and the observer share the machine.
"""

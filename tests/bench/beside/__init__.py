"""A comparison of policysched with kube-scheduler: the same control plane, the same nodes and pods, one after the other in one run.

    world.py    nodes and pending pods, quickly, and away again
    watching.py when each pod was bound and its event there, as a third party sees it; what a process took for it
    rounds.py   one scheduler's turn
    report.py   table, page and plot

`python -m tests.bench.beside --nodes 1000 --pods 2000`. Ratios are what counts: the machine is shared with etcd, the API
server and the observer.
"""

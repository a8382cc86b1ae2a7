"""A bad road between policysched and a real API server, by seeds; what must hold is judged from the server's objects.

    python -m policysched ◄──► road.py: delays, drops, cuts, repeats, refuses ◄──► kube-apiserver ◄── watchman.py, workload

    climate.py   which faults a seed has, and how often
    road.py      the proxy that has them
    workload.py  nodes and pods of a seed, in a namespace and a pool of nodes of its own, so that several run at once
    watchman.py  what must hold at each change, and when the road is good again
    fair_clock.py  how long that may take, whoever else keeps the machine busy
    seed.py      one seed from start to end
    bugs.py      planted bugs, to see that they are caught

`python -m tests.e2e.chaos --seeds 500` runs more of them than the tests do, `--first 17 --seeds 1` one again. The faults of
a seed are the same each time; how they fall between two processes is not.
"""

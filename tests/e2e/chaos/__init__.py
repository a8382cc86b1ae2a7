"""Faults between policysched and a real API server, drawn from seeds; safety is checked on the server's
objects.

    python -m policysched <--> faulty_transport <--> kube-apiserver <-- safety_checker, workload

    fault_profile.py     the faults of a seed and their probabilities
    faulty_transport.py  the proxy that injects them: delays, drops, cuts, repeats, errors
    workload.py          nodes and pods of a seed, in their own namespace and node pool, so that
                         several seeds run at once
    safety_checker.py    what must hold at each change, and after the last fault
    fair_clock.py        time that does not depend on the load of the machine
    seed.py              one seed from start to end
    bugs.py              planted bugs that the checker must catch

`python -m tests.e2e.chaos --seeds 500` runs more seeds than the tests do; `--first 17 --seeds 1` repeats
one. The faults of a seed are the same each time; how they interleave with two processes is not.
"""

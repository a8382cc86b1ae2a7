"""A simulated world: an API server in memory, what stands around it, and the faults of the road to it.

The server is a plain state machine (`apiserver`): a request and a time in, an answer out. It is carried in memory
(`transport`), where faults can be drawn by seed on a clock that jumps (`loop`), or over HTTP on the loopback
interface (`http`), where stock kubectl talks to it. `sandbox` puts the second together with nodes, a pretend kubelet
and the controllers that make pods of Deployments and Jobs.

Nothing in here decides where a pod goes, and nothing real is ever contacted.
"""

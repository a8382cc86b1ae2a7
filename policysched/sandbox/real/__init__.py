"""A sandbox on a real control plane: etcd and kube-apiserver as processes, with the simulated nodes, kubelet and controllers."""

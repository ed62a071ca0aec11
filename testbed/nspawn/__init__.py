"""The proof on real systemd: hosts that boot from this machine's own root, install FlowEdge and serve with it.

Everything lives in namespaces of its own (mounts, network, processes): nothing is left of it, however it ends.
"""

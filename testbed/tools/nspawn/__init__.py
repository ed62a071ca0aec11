"""The proof on real systemd: hosts that boot from this machine's root, install FlowEdge and serve with it.

Everything lives in namespaces of its own, of mounts, network and processes: nothing is left, however it ends.
"""

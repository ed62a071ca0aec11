"""The proof on real systemd: hosts that boot from this machine's root, install FlowEdge and serve with it.

Everything runs in mount, network and process namespaces of its own, so nothing is left when it ends.
"""

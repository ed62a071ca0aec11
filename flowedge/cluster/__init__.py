"""Who belongs to a cluster: its CA, the members' certificates, and mutual TLS between them."""

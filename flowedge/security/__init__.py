"""Who may speak to whom: certificates, roles, joining, renewal and revocation (see docs/security.md)."""

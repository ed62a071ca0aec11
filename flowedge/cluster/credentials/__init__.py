"""What a member has: its key, its certificate, the CA's certificate and the revocation list.

Reading or verifying any of them raises AccessError when it fails.
"""

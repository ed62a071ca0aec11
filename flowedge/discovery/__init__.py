"""Finding agents on the local network by zeroconf (mDNS and DNS-SD), and being found."""

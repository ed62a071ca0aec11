"""HTTP itself: limits of connections, headers and bodies, checks of every request, and the server."""

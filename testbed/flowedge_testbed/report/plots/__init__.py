"""The pictures of a report: each says on itself what was run, and no text of it is cut off."""

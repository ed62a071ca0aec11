"""The first hours of a new user: what the documents say to type, and what people type by mistake."""

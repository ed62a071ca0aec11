"""The walk of a newcomer: whole commands, as a user gives them."""

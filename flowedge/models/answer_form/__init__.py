"""The forms that models write reasoning and tool calls in: reading answers, and forcing calls."""

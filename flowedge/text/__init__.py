"""Text and tokens without torch: tokenizers, chat templates, tool calls in answers, grammars."""

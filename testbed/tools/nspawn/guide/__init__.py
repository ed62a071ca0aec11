"""The commands and settings of docs/five-boards.md, and the person who gives them on booted hosts."""

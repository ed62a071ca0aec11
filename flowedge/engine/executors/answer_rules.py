"""The rules of the sessions whose tokens a draft node draws, and where they stand."""

from __future__ import annotations

from flowedge.core.errors import GrammarError
from flowedge.core.sampling import LogitRules, RuledPath
from flowedge.models.sampling.path_rules import PathRules
from flowedge.text.grammar_compiler import GrammarCompiler


class AnswerRules:
    """The state of each session's rules, which follows the path that a job names."""

    def __init__(self, grammars: GrammarCompiler | None) -> None:
        """`grammars` is None where no tokenizer is known, so that no request may have a grammar."""
        self._grammars = grammars
        self._paths: dict[str, tuple[LogitRules, PathRules]] = {}

    def at(self, session: str, path: RuledPath) -> PathRules:
        """Return the rules of a session, standing at a path.

        Raises:
            GrammarError: when the grammar cannot be used or followed.
        """
        known = self._paths.get(session)
        if known is None or known[0] != path.rules:
            known = self._paths[session] = path.rules, self._begin(path.rules)
        known[1].go_to(path.tokens)
        return known[1]

    def _begin(self, rules: LogitRules) -> PathRules:
        if rules.grammar is None:
            return PathRules(rules, None)
        if self._grammars is None:
            raise GrammarError(f"{rules.grammar.parameter} cannot be followed here: no tokenizer is loaded")
        return PathRules(rules, self._grammars.matcher(rules.grammar))

    def drop(self, session: str) -> None:
        """Free the state of a session, which may be unknown."""
        self._paths.pop(session, None)

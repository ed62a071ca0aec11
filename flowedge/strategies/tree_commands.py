"""Commands about the nodes of a draft tree, for all strategies that have a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowedge.core.tree import UNSENT, DraftTree
from flowedge.strategies.commands import AcceptPath, Emit, Send
from flowedge.strategies.events import Verified


def send_nodes(tree: DraftTree, nodes: Sequence[int], more: bool = False) -> Send:
    """Return the command that sends unsent nodes as a segment; `more` is as in Send."""
    parents = tree.mark_sent(nodes)
    return Send(tuple(tree.tokens[list(nodes)].tolist()), tuple(parents), more)


def advance(
    tree: DraftTree, event: Verified, *, early_stop: bool = True
) -> tuple[DraftTree, Emit, AcceptPath]:
    """Move the root to the drawn token.

    Args:
        early_stop: whether the stages hear at once that the round has ended, when it has.

    Returns:
        The tree, or a new tree if the drawn token has no node; then the commands for the move.
    """
    path, emit = verified_path(tree, event)
    root = tree.child(path[-1], event.token)
    accept = accept_path(tree, event, root)
    if root is None:
        return DraftTree(event.token, tree.context + len(path)), emit, replace(accept, express=early_stop)
    tree.reroot(root)
    return tree, emit, accept


def verified_path(tree: DraftTree, event: Verified) -> tuple[list[int], Emit]:
    """Return the accepted nodes, root first, and the command that puts out the tokens behind the root."""
    path = [tree.node_of_row(row) for row in event.accepted]
    return path, Emit((*(int(tree.tokens[node]) for node in path[1:]), event.token))


def accept_path(tree: DraftTree, event: Verified, root: int | None) -> AcceptPath:
    """Return the command that makes the accepted rows context.

    Args:
        tree: the tree before it moves its root.
        root: node of the drawn token, which becomes the root; None ends the round.
    """
    row = UNSENT if root is None else int(tree.rows[root])
    return AcceptPath(event.accepted, None if row == UNSENT else row, ends_round=root is None)

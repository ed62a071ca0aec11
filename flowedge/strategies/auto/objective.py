"""The objective of `auto`, tokens per second, and the decisions that follow from it: pure functions.

While a segment travels through the pipeline, a token can come out only if its row is in flight. With m
segments in flight, each of r rows, the tokens of a trip are S(m r): the sum of the probabilities of the m r
likeliest nodes of the draft tree, the root with probability 1 included. So

    tokens/s = S(m r) / T(m, r),    T(m, r) = max(trip(r) + verification(r), m slowest(r))

because segments wait for each other in front of the slowest stage or link. All decisions compare what they
add to S with what they add to T.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from flowedge.core.arrays import BoolArray, FloatArray

# S counts the nodes that are there already; what is drafted during a trip goes with a segment behind. So more
# segments are taken where the plan is about as good with them.
_AS_GOOD = 0.95
_JUMP = 1.5  # times as long as a single row: two rows that take so long are another kind of forward
_CLEARLY = 1.25  # times the tokens/s of single rows that segments of several have to have then
_FILLED = 0.75  # share of a trip that segments may fill: those beyond one a stage are not to wait
_MOST_SEGMENTS = 64
_LEVELS = 64  # of a tree, beyond which nothing is expected
# Numbers of nodes among which a forward of the drafter is chosen.
_NODE_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True)
class CycleTimes:
    """The seconds of segments of 1 to `most` rows: float64 [most] each, never falling.

    Attributes:
        returned: T of a segment that is alone: all stages and links, and the verification.
        interval: of the slowest stage or link.
        draft_node: the draft node's work for a segment.
    """

    returned: FloatArray
    interval: FloatArray
    draft_node: FloatArray

    def segments(self, stages: int) -> int:
        """Return the most segments in flight: one a stage, and more where links take most of a trip."""
        fitting = int(_FILLED * self.returned[0] / self.interval[0]) if self.interval[0] else 0
        return max(stages, min(fitting, _MOST_SEGMENTS))

    def together(self, most: int) -> FloatArray:
        """Return T of 1 to `most` segments that follow each other closely: float64 [most, most rows].

        Each returns for the next of its rows when the others have passed the slowest stage.
        """
        segments = np.arange(1, most + 1)[:, None]
        seconds: FloatArray = np.maximum(self.returned, segments * self.interval)
        return seconds


@dataclass(frozen=True)
class RowChoice:
    """The numbers of rows and of segments with the most tokens/s, and what follows from them.

    Attributes:
        rows: of each segment.
        segments: in flight.
        tokens_per_s: predicted, for drafting that keeps up.
        thresholds: float64 [most], least probability at which a row is worth sending as the i-th of a
            segment.
    """

    rows: int
    segments: int
    tokens_per_s: float
    thresholds: FloatArray

    def thresholds_behind(self, free: BoolArray) -> FloatArray:
        """Return the least probabilities of the rows of a segment behind others: float64 [most].

        What was not worth a place in the segment before is not worth a segment of its own.

        Args:
            free: [most], by the number of rows of a segment, whether these cost nothing.
        """
        if self.rows == 1:
            return self.thresholds
        thresholds = np.append(self.thresholds[self.rows - 1], self.thresholds[1:])
        thresholds[: self.rows][free[: self.rows]] = 0.0
        return thresholds


def choose_rows(
    probabilities: FloatArray,
    times: CycleTimes,
    most: int,
    hit: float,
    row_price: float,
) -> RowChoice:
    """Return the plan with the most tokens/s.

    One row more in each of m segments adds m p to S, and the slope of T to T. That is worth it while

        m p / S >= row_price * T' / T

    A row that a single segment has beyond the plan adds p, and holds up all segments behind it.

    Args:
        probabilities: float64 [n], of the likeliest nodes of a tree, falling, the root's 1 first; further
            nodes are not worth counting.
        times: of segments of 1 row and more.
        most: segments that may be in flight.
        hit: probability that a drawn token is among the proposals below its node.
        row_price: by how much more a row has to add to S than to T; 1 is the objective's own.
    """
    segments, rows = np.arange(1, most + 1)[:, None], np.arange(1, len(times.returned) + 1)
    nodes = np.minimum(segments * rows, len(probabilities))
    tokens = np.cumsum(probabilities)[nodes - 1]
    seconds = times.together(most)
    rates = tokens / seconds
    # Segments of several rows hold up the roots behind them. Where these take much longer than single rows,
    # as with weights that are unpacked for two rows, they have to be clearly better.
    if len(times.returned) > 1 and times.returned[1] > _JUMP * times.returned[0]:
        rates[:, 1:] /= _CLEARLY
    each = rates.max(axis=1)
    of_best = int(np.flatnonzero(each >= _AS_GOOD * each.max())[-1])
    best = int(np.argmax(rates[of_best]))
    # During a trip the draft node makes so many forwards, of which each adds a level to the tree.
    drafted_s = np.maximum(seconds, times.draft_node)
    forwards = (drafted_s / np.maximum(times.draft_node, drafted_s / _LEVELS)).astype(np.int64)
    levels = np.cumsum(hit ** np.arange(_LEVELS + 1))[forwards]
    sustained = np.minimum(tokens, levels) / drafted_s
    slopes = np.diff(seconds[of_best], prepend=seconds[of_best, 0])
    slopes[best + 1 :] *= of_best + 1
    # With a single segment there is none behind that a row could hold up.
    rate = tokens[of_best, best] / seconds[of_best, best]
    price = (row_price if of_best else 1.0) * rate / (of_best + 1)
    return RowChoice(best + 1, of_best + 1, float(sustained.max()), price * slopes)


def nodes_of_forward(
    probabilities: FloatArray,
    forward_s: FloatArray,
    slack_s: float,
    hit: float,
    tokens_per_s: float,
    rows: int,
) -> tuple[int, float]:
    """Return how many nodes, likeliest first, the next forward of the drafter is to have.

    A forward over k nodes adds hit * (p_1 + .. + p_k) to S, in which no more nodes count than rows are in
    flight. Where it ends later than the draft node is needed again, it delays everything by the rest. The
    number with the best value per second of the forward is taken.

    Args:
        probabilities: float64 [n], of the undrafted nodes, falling; n is 1 or more.
        forward_s: float64 [n], by nodes.
        slack_s: time until the draft node is needed again, or a segment may leave without its layer.
        hit: probability that a drawn token is among the proposals below its node.
        tokens_per_s: that decoding has at present.
        rows: that are in flight by the plan.

    Returns:
        The number of nodes, and the tokens that the forward adds.
    """
    all_nodes, times, sums = len(probabilities), forward_s.tolist(), [*accumulate(probabilities.tolist())]
    best, best_tokens, best_rate = 0, 0.0, -math.inf
    for count in (*_NODE_COUNTS[: bisect_left(_NODE_COUNTS, all_nodes)], all_nodes):
        seconds, tokens = max(times[count - 1], 1e-9), hit * sums[min(count, rows) - 1]
        rate = (tokens - tokens_per_s * max(seconds - slack_s, 0.0)) / seconds
        if rate > best_rate:
            best, best_tokens, best_rate = count, tokens, rate
    return best, best_tokens


def nodes_beside(probabilities: FloatArray, added_s: FloatArray, hit: float, tokens_per_s: float) -> int:
    """Return how many nodes of a session join a forward of the drafter that is made for others anyway.

    Args:
        probabilities: float64 [n], of the undrafted nodes, falling; n is 1 or more.
        added_s: float64 [n], by which 1 to n nodes lengthen the forward.
        hit: probability that a drawn token is among the proposals below its node.
        tokens_per_s: that decoding has at present.
    """
    values = hit * np.cumsum(probabilities) - tokens_per_s * added_s
    best = int(np.argmax(values))
    return best + 1 if values[best] > 0 else 0

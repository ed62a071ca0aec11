"""Whether drafting is faster than plain decoding, and with how many segments in flight."""

from __future__ import annotations

from enum import Enum, auto

from flowedge.strategies.auto.speed import Speed

_TRIAL_TOKENS = 16  # drafted before drafting is judged
_SHORT_TRIAL_TOKENS = 8  # likewise where it is much slower than plain decoding, and for plain decoding itself
_MUCH_SLOWER = 0.75
_MUCH_FASTER = 1.25  # than the predicted speed of plain decoding, which need not be measured then
_MEAN_TOKENS = 64  # over which ways of drafting are compared, since texts are not equally foreseeable
_LATEST_TOKENS = 256  # drafted, over which an answer is begun by drafting if that was faster on the whole
# Share of the speed of plain decoding that drafting may have, over fewer tokens than that, where it is
# predicted to be faster.
_CHANCE = 0.9
_NEARLY = 0.99  # likewise of lookup, which goes on beside plain decoding in case that the text repeats itself
_SOME = 1.01  # of the speed of plain decoding, below which drafting gains nothing
_FASTER = 1.05  # than the way of drafting that is left for another
_FIRST_PAUSE = 128  # tokens before what was slower is tried again
_LONGEST_PAUSE = 1024
_CHANGED = 1.2  # factor of the speed of plain decoding by which a pipeline has become another


class Mode(Enum):
    """A way to decode: with nothing drafted, or with one or several segments in flight."""

    PLAIN = auto()
    ONE = auto()
    LOOKUP = auto()  # as many segments as the plan has, drafted by lookup alone
    ALL = auto()  # likewise, drafted by all drafters


class DraftingProbation:
    """The mode of a pipeline: drafting as long as it is predicted to be faster, and measured to be.

    What was slower is tried again after a pause, which doubles each time, and by a session that begins if
    drafting was faster on the whole: one text says little of the next. The speed of plain decoding is
    predicted, from segments beside which something was drafted. Devices of one host, which share a processor,
    are slower then. There plain decoding is measured, where the prediction decides or when the second session
    begins, and the third session begins with a single segment in flight, since several may gain nothing.

    Where models are joined with lookup, lookup alone is tried before plain decoding: it takes no time of the
    draft node, so that it goes on while it costs next to nothing.

    Speeds are kept as multiples of the speed that plain decoding is predicted to have: they stay right where
    a device or a link becomes slower. Plain decoding itself measures neither, so drafting is tried at once
    where its speed changes.

    Attributes:
        mode: the present one.
    """

    def __init__(self, *, one_host: bool = False, looks_up: bool = False) -> None:
        """The arguments are as in DraftNodeSpec."""
        self.mode = Mode.ALL
        self._one_host, self._looks_up = one_host, looks_up
        self._sessions = 0
        self._stages = 1
        self._tokens = 0  # since the mode began
        self._measured_tokens = 0  # likewise, of this session
        self._pause = _FIRST_PAUSE
        self._plain = 0.0  # predicted tokens/s of plain decoding, at present
        self._plain_before = 0.0  # likewise when the present measurement began
        self._plain_began = 0.0  # measured tokens/s of plain decoding when it had been judged first
        self._speeds: dict[Mode, float] = {}  # measured
        self._drafted = Mode.ALL  # the latest mode that drafts
        self._means: dict[Mode, float] = {}  # tokens/s of the latest time of a mode, over some answers
        self._latest = Speed(0.0, window=_LATEST_TOKENS)  # of drafting, over several answers

    @property
    def plain_tokens_per_s(self) -> float:
        """The latest measured speed of plain decoding; 0 where it was not measured."""
        return self._plain * self._speeds.get(Mode.PLAIN, 0.0)

    @property
    def drafts(self) -> bool:
        return self.mode is not Mode.PLAIN

    def begin(self, stages: int) -> None:
        """Begin another session on a pipeline of so many stages."""
        self._sessions += 1
        self._stages = stages
        if self._one_host and self._sessions > 1 and Mode.PLAIN not in self._speeds:
            self._enter(Mode.PLAIN)
        elif self._may_try_one:
            self._enter(Mode.ONE)
        elif self.mode is Mode.PLAIN and self._latest.tokens_per_s > self._speeds.get(Mode.PLAIN, 1.0):
            self.mode = self._drafted
            self._begin_anew()
        self._measured_tokens = 0
        self._plain_before = 0.0

    def decide(self, tokens: int, predicted: float, measured: float, plain: float) -> bool:
        """Take in drawn tokens, and return whether measuring begins anew: another mode, or another pipeline.

        Args:
            predicted: tokens/s of drafting with all drafters, if all goes well.
            measured: tokens/s since the mode began, or since the session began.
            plain: predicted tokens/s of plain decoding.
        """
        self._plain = plain
        self._plain_before = self._plain_before or plain
        if self.drafts and self._has_changed:
            self._begin_anew()
            return True
        predicted, measured = predicted / plain, measured / plain
        self._tokens += tokens
        self._measured_tokens += tokens
        if self.drafts and tokens:
            self._latest.add(tokens, tokens / measured)
        judged = self._measured_tokens >= (_SHORT_TRIAL_TOKENS if self.mode is Mode.PLAIN else _TRIAL_TOKENS)
        if judged or (self.mode is Mode.ALL and self._measured_tokens >= _SHORT_TRIAL_TOKENS):
            self._speeds[self.mode] = measured
        following = self.mode
        if self.mode is Mode.PLAIN:
            following = self._after_plain(predicted, measured) if judged else self.mode
        elif self.mode is Mode.ONE and not judged:
            pass  # its tokens come in bursts
        elif not self._goes_on(predicted, measured):
            following = Mode.ONE if judged and self._may_try_one else self._cheaper
        elif judged:
            following = self._other_drafting(tokens, predicted, measured)
        if following is self.mode:
            return False
        self._enter(following)
        return True

    @property
    def _may_try_one(self) -> bool:
        """Whether a single segment in flight has not been tried, and all else was, in earlier sessions."""
        tried = {*self._speeds, self.mode}
        may_gain = self._one_host and self._sessions > 1 and self._stages > 1
        return may_gain and Mode.ONE not in tried and {Mode.PLAIN, Mode.ALL} <= self._speeds.keys()

    @property
    def _cheaper(self) -> Mode:
        """The mode after one that is too slow."""
        slower = self._speeds.get(Mode.LOOKUP, 1.0) < _NEARLY * self._speeds.get(Mode.PLAIN, 1.0)
        return Mode.LOOKUP if self._looks_up and self.mode is not Mode.LOOKUP and not slower else Mode.PLAIN

    def _enter(self, mode: Mode) -> None:
        if mode is not Mode.PLAIN:
            self._drafted = mode
            if self.mode is not Mode.ALL:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._plain_began = 0.0
        self.mode = mode
        self._begin_anew()

    @property
    def _has_changed(self) -> bool:
        """Whether the pipeline has become slower or faster while something was drafted."""
        return not 1 / _CHANGED < self._plain / self._plain_before < _CHANGED

    def _begin_anew(self) -> None:
        self._means.pop(self.mode, None)
        self._plain_before = self._plain
        self._tokens = self._measured_tokens = 0

    def _after_plain(self, predicted: float, measured: float) -> Mode:
        self._plain_began = self._plain_began or measured
        if not 1 / _CHANGED < measured / self._plain_began < _CHANGED:
            return Mode.ALL
        drafting = [
            mode for mode, speed in self._speeds.items() if mode is not Mode.PLAIN and speed > measured
        ]
        if drafting:
            return max(drafting, key=lambda mode: self._speeds[mode])
        if self._looks_up and Mode.LOOKUP not in self._speeds:
            return Mode.LOOKUP
        if self._tokens < self._pause:
            return Mode.PLAIN
        if predicted <= measured:
            return Mode.LOOKUP if self._looks_up else Mode.PLAIN
        return Mode.ONE if Mode.ONE in self._speeds and self._drafted is Mode.ALL else Mode.ALL

    def _other_drafting(self, tokens: int, predicted: float, measured: float) -> Mode:
        """Return the mode to go on with after one that drafts and is faster than plain decoding."""
        mean = self._means.get(self.mode, measured)
        mean += min(tokens / _MEAN_TOKENS, 1.0) * (measured - mean)
        self._means[self.mode] = mean
        fastest = max(self._means, key=lambda mode: self._means[mode])
        if self._means[fastest] > _FASTER * mean:
            return fastest
        waited = self._tokens >= self._pause
        if self.mode is Mode.ALL:
            plain = self._speeds.get(Mode.PLAIN, 1.0)
            gains_nothing = self._looks_up and mean < _SOME * plain
            return Mode.LOOKUP if gains_nothing and (waited or Mode.LOOKUP not in self._means) else self.mode
        return Mode.ALL if waited and (self.mode is Mode.ONE or predicted > measured) else self.mode

    def _goes_on(self, predicted: float, measured: float) -> bool:
        """Return whether to go on drafting."""
        plain = self._speeds.get(Mode.PLAIN, 1.0)
        if self.mode is Mode.LOOKUP:
            return self._measured_tokens < _TRIAL_TOKENS or self._lookup_costs_little(measured, plain)
        enough = _MUCH_FASTER if self._one_host and Mode.PLAIN not in self._speeds else plain
        if self._measured_tokens < _SHORT_TRIAL_TOKENS:
            return predicted > plain
        if self._measured_tokens < _TRIAL_TOKENS:
            return measured >= _MUCH_SLOWER * plain
        if self._measured_tokens >= _MEAN_TOKENS:
            return self._means.get(self.mode, measured) >= enough
        is_predicted = predicted > plain and not self._one_host
        return measured >= (_CHANCE * plain if is_predicted else enough)

    def _lookup_costs_little(self, measured: float, plain: float) -> bool:
        if self._measured_tokens < _MEAN_TOKENS:
            return measured >= _CHANCE * plain
        return self._means.get(self.mode, measured) >= _NEARLY * plain

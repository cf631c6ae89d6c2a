"""Who is expected back: inferlets that have nothing in their queues, and will issue something soon.

Theory of operation. An inferlet whose queues are empty is in one of three places. *In flight*: a wave will answer a
future of it. *In hands*: an answer was told, and its program works on it; it has issued nothing since, and its host has
not said that all its inferlets wait. *Away*: it waits for something else, such as a message, and nobody knows for how
long. Whoever has commands in queues is away, too: what it issued can go.

How long guests take is measured by delivery, which is all that one turn tells: from the turn until most of those that
it told are back. A few slow ones do not count, for nobody should wait for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from pie_control.tenants.tenant import ServiceClass

from .account import Account, Whereabouts
from .statistics import LinearFit

STRAGGLERS = 8
"""One in so many of a delivery may be slow, and the others count as back."""


class Delivery:
    """What one turn told, counted in queues of those that it woke."""

    __slots__ = ("count", "left", "since", "turn")

    def __init__(self, turn: int, since: float) -> None:
        self.turn = turn
        self.since = since
        self.count = self.left = 0

    def woke(self, queues: int) -> None:
        """One more inferlet was told, with so many queues."""
        self.count += queues
        self.left += queues

    def left_hands(self, queues: int) -> None:
        """One that was told is back, or has ended."""
        self.left -= queues

    @property
    def is_back(self) -> bool:
        """Whether all but stragglers are."""
        return self.left * STRAGGLERS <= self.count


class Guests:
    """Where inferlets are, and how long their programs take."""

    def __init__(self) -> None:
        self.turn = 0  # number of the turn
        self.now = 0.0  # its time
        self.in_flight = [0] * len(ServiceClass)  # queues of those in flight, by class
        self.in_hands = [0] * len(ServiceClass)
        self.seconds = LinearFit()  # over the size of a delivery
        self._hands: dict[int, dict[Account, Delivery]] = {}  # by host
        self._deliveries: deque[Delivery] = deque()  # with somebody in hands, and perhaps others

    @property
    def next(self) -> Delivery | None:
        """The oldest delivery that somebody works on."""
        while self._deliveries and not self._deliveries[0].left:
            self._deliveries.popleft()
        return self._deliveries[0] if self._deliveries else None

    # ---- what happens ----

    def turn_begins(self, now: float) -> None:
        self.turn += 1
        self.now = now

    def issued(self, account: Account) -> None:
        """An inferlet has issued a command."""
        if account.place is not None:
            self._leave(account, back=True)

    def sent(self, accounts: Mapping[Account, int]) -> None:
        """A wave goes out, with so many queues of each inferlet."""
        for account, queues in accounts.items():
            if not account.waiting and account.futures and account.place is None:
                account.expect(queues)
                self._fly(account)

    def told(self, account: Account) -> None:
        """A future of an inferlet is answered."""
        if account.waiting or account.place is Whereabouts.HANDS:
            return
        if account.place is Whereabouts.FLIGHT:
            self._leave(account, back=False)
        delivery = self._deliveries[-1] if self.next else None
        if delivery is None or delivery.turn != self.turn:
            delivery = Delivery(self.turn, self.now)
            self._deliveries.append(delivery)
        delivery.woke(account.expected)
        account.waits_in(Whereabouts.HANDS)
        self.in_hands[account.standing.service_class] += account.expected
        self._hands.setdefault(account.host, {})[account] = delivery

    def quiet(self, host: int, heard: int | None) -> None:
        """All inferlets of a host wait that have heard no more than they were told up to a turn."""
        hands = self._hands.get(host, {})
        for account, delivery in list(hands.items()):
            if heard is None or delivery.turn <= heard:
                self._leave(account, back=True)
                if account.futures:
                    self._fly(account)

    def has_hands(self, host: int) -> bool:
        """Whether somebody of a host has something in hands."""
        return bool(self._hands.get(host))

    def gone(self, account: Account) -> None:
        """An inferlet has ended."""
        if account.place is not None:
            self._leave(account, back=False)

    # ---- places ----

    def _fly(self, account: Account) -> None:
        account.waits_in(Whereabouts.FLIGHT)
        self.in_flight[account.standing.service_class] += account.expected

    def _leave(self, account: Account, back: bool) -> None:
        place = account.place
        account.waits_in(None)
        counts = self.in_flight if place is Whereabouts.FLIGHT else self.in_hands
        counts[account.standing.service_class] -= account.expected
        if place is Whereabouts.HANDS:
            delivery = self._hands[account.host].pop(account)
            was_back = delivery.is_back
            delivery.left_hands(account.expected)
            if back and delivery.is_back and not was_back and delivery.turn != self.turn:
                self.seconds.add(delivery.count, self.now - delivery.since)

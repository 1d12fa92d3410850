"""Messages from the feed to the screens."""

from __future__ import annotations

from schedtop.engine.contract.telemetry import Reply
from textual.message import Message


class DataArrived(Message):
    """History or link changed since the last paint. Never queued twice: it says that, not what."""


class ReplyReceived(Message):
    """The engine answered a command."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply

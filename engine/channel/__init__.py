"""Records out, commands in: the link between an engine and its consoles."""

from schedtop.engine.channel.client import ChannelClient, ChannelClosedError
from schedtop.engine.channel.protocol import ChannelError, Sink, encode
from schedtop.engine.channel.server import ChannelServer

__all__ = ["ChannelClient", "ChannelClosedError", "ChannelError", "ChannelServer", "Sink", "encode"]

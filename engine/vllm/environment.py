"""The hook's settings from the environment, and where it logs."""

from __future__ import annotations

import logging

ADDRESS = "SCHEDTOP_ATTACH"
READ_ONLY = "SCHEDTOP_ATTACH_READONLY"
FLIGHTS = "SCHEDTOP_FLIGHT_RECORDER"

log = logging.getLogger("vllm.schedtop")  # below vLLM's own logger, so that its handlers show it

"""Where the hook writes its few lines."""

from __future__ import annotations

import logging

log = logging.getLogger("vllm.schedtop")  # below vLLM's own logger, so that its handlers show it

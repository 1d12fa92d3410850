"""Which manager a configuration needs."""

from __future__ import annotations

from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.kv.coordinator import KVCoordinator
from schedtop.engine.kv.manager import KVManager


def open_kv(config: SchedulerConfig) -> KVManager:
    """The single-group manager where it suffices: it serves many requests at once."""
    groups = config.groups()
    plain = len(groups) == 1 and groups[0].mamba is None and groups[0].block_size == config.block_size
    drafter = config.drop_last_cached_block or config.num_lookahead_tokens or config.prefill_lookahead
    plain = plain and config.kv_connector is None and not config.kv_host_memory_bytes
    if plain and not config.has_groups and config.prefix_cache_retention_interval is None and not drafter:
        return KVManager(config)
    return KVCoordinator(config, groups)

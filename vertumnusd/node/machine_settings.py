"""What the machines of a node are told, from its configuration and what it serves."""

from __future__ import annotations

from vertumnusd.config import Config
from vertumnusd.control.settings import FetchSettings, Settings
from vertumnusd.control.step_order import StepLimits
from vertumnusd.node.leads import LeadSettings
from vertumnusd.node.served import Served


def controller_settings(config: Config, served: Served) -> Settings:
    cluster, placement = config.cluster, config.placement
    return Settings(
        cp_degrees=cluster.cp_degrees,
        ranks=cluster.ranks,
        home_ranks=config.home_ranks,
        composition=config.composition,
        historic_demands_s=cluster.historic_demands_s,
        policy=placement.policy,
        left_out=() if config.rank.max_paused else ("pause",),
        beta=placement.beta,
        lambda_=placement.lambda_,
        block_tokens=config.cache.block_tokens,
        kv_blocks=config.kv_blocks,
        decode_ranks=cluster.decode_ranks,
        decode_kv_blocks=config.decode_kv_blocks,
        max_queue_tokens=placement.max_queue_tokens,
        max_queue_s=placement.max_queue_s,
        unplaced_wait_s=placement.unplaced_wait_s,
        step_s=config.rank.step_s,
        reconfiguration=served.adaptation,
        replication=config.replication,
        fetch=FetchSettings(token_s=_fetch_token_s(config, served)),
    )


def lead_settings(config: Config, served: Served) -> LeadSettings:
    limits = StepLimits(
        config.rank.step_s,
        config.rank.max_paused,
        config.rank.pack_requests,
        min(config.rank.pack_tokens, served.model.context_tokens),
    )
    return LeadSettings(
        block_tokens=config.cache.block_tokens,
        layers=served.model.layers,
        prefill_time=served.prefill_time,
        steps=limits.under(controller_settings(config, served)),
        progress_timeout_s=config.rank.progress_timeout_s,
    )


def _fetch_token_s(config: Config, served: Served) -> float:
    """Seconds until the ranks of a home have copied a token's KV, each its share; 0: never."""
    if not config.placement.fetch:
        return 0.0
    bytes_per_s = config.placement.fetch_bytes_per_s * config.home_ranks
    return served.model.kv_bytes_per_token / bytes_per_s

"""How much a client may ask of the doors. Every number here bounds memory, time or work."""

from __future__ import annotations

from dataclasses import dataclass

MiB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Defaults of the doors; bytes, seconds and counts as the names say."""

    header_bytes: int = 8 * 1024
    message_bytes: int = 16 * MiB  # an HTTP body or a websocket message, coming in
    fragments: int = 64  # of one websocket message
    connections: int = 2000
    connections_per_address: int = 64
    in_flight_per_key: int = 32
    lanes: int = 32  # of one websocket with unfinished responses
    in_flight_per_connection: int = 16  # responses of one websocket that run side by side
    pending_per_connection: int = 64  # responses of one websocket, waiting ones included
    remembered_responses: int = 64  # of one websocket, for previous_response_id
    prompts_per_request: int = 16  # of one /v1/completions
    default_output_tokens: int = 1024  # when the client names no maximum
    handshake_s: float = 5.0  # from the first byte to the end of the header
    body_s: float = 60.0
    idle_s: float = 75.0  # between two requests of a kept connection
    send_s: float = 30.0  # a client that takes nothing for so long is closed
    ping_s: float = 20.0
    silence_s: float = 600.0  # a websocket that sends not even pongs for so long is closed
    close_s: float = 2.0  # wait for the other half of a close

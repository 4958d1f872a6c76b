"""What the configuration and the profile make of a node's machines."""

import pytest

from vertumnusd.config import load_config
from vertumnusd.control.fleet import composition_name
from vertumnusd.node.machine_settings import controller_settings
from vertumnusd.node.served import open_served


@pytest.mark.parametrize(
    ("demands_s", "composition"),
    [("[31.9]", "2CP4"), ("[40.0, 75.0]", "1CP4/4CP1"), ("[12.0, 999.0]", "8CP1")],
)
def test_an_automatic_composition_covers_the_busiest_past_window(demands_s, composition, tmp_path):
    # κ is 0.8 · 20 s a worker, as the profile has none
    path = tmp_path / "node.toml"
    path.write_text(f"""
        model = {{ profile = "q3" }}
        rank = {{ device = "paced" }}

        [cluster]
        ranks = 8
        cp_degrees = [1, 2, 4]
        composition = "auto"
        historic_demands_s = {demands_s}
    """)
    config = load_config(path)
    settings = controller_settings(config, open_served(config))
    assert composition_name(settings.workers()) == composition

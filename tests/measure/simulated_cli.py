"""``wattcast`` in a process of its own, with a simulated board in the place of the machine's.

python -m tests.measure.simulated_cli measure RECORDING.jsonl --only energy.fma.f32,latency.fma
"""

from __future__ import annotations

from unittest.mock import patch

from tests.measure.measuring import NO_COUNTER, board
from tests.measure.simulation import simulated
from wattcast.app.cli import main
from wattcast.measure.run import Machine

if __name__ == "__main__":
    with patch.object(Machine, "here", lambda index: simulated(board(NO_COUNTER))):
        main()

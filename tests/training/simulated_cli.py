"""``wattcast`` in a process of its own, with a simulated board in the place of the machine's.

python -m tests.training.simulated_cli measure RECORDING.jsonl --only energy.fma.f32,latency.fma
"""

from __future__ import annotations

from unittest.mock import patch

from studies.onboarding.simulation import simulated
from tests.training.measuring import NO_COUNTER, board
from wattcast.app.cli import main
from wattcast.training.measure.run import Machine

if __name__ == "__main__":
    with patch.object(Machine, "here", lambda index: simulated(board(NO_COUNTER))):
        main()

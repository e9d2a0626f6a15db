"""The process that runs one job: ``python -m wattcast.app.jobs <job id>``, started by a worker.

Exit status 0: the job has ended. Anything else: it has not, and the worker tries it again; 28 after
a disk was full, which takes longer to mend.
"""

from __future__ import annotations

import os

# Before any numeric library starts its threads: spinning ones starve a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sys
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from wattcast.app import logs, problems
from wattcast.app.jobs.worker import NO_ROOM_STATUS, TOKEN_VARIABLE
from wattcast.app.settings import Settings
from wattcast.app.store.jobs import LeaseLostError
from wattcast.features.errors import WattcastError


def main() -> int:
    """Run the job named on the command line; the exit status."""
    settings = Settings()
    _stand_back(settings)
    logs.configure(settings)
    from wattcast.app.services.retrain import run_job

    try:
        run_job(settings, UUID(sys.argv[1]), os.environ[TOKEN_VARIABLE])
    except LeaseLostError as error:
        logs.log().warning("job stopped", why=error.detail)
        return 3
    except (OSError, SQLAlchemyError, WattcastError) as error:
        if not problems.is_full(error):
            raise
        logs.log().error("no room left on a disk", exc_info=error)
        return NO_ROOM_STATUS
    return 0


def _stand_back(settings: Settings) -> None:
    if settings.job_priority == "idle" and hasattr(os, "SCHED_IDLE"):
        # Threads inherit it. What is merely nice keeps a core for some milliseconds after a
        # request came in.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    sys.exit(main())

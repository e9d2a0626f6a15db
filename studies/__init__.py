"""What only reproduced papers, fits of the shipped models and evidence need.

Run from a checkout: ``python -m studies`` lists the studies, ``python -m studies NAME --help`` says
what one takes. Nothing below ``wattcast`` imports from here, and the wheel does not hold it.

    papers/         the thesis, Wang and Chu, Abe et al., Guerreiro et al.: their tables again
    fitting/        fits of the shipped models; ``fit-all`` makes every one anew
    pages/          docs/reference and the tab Accuracy, from code and results
    data/           tables that only studies read: many clocks, activities, measured launches
    budget/ catalogue/ advice/ traces/ and the modules here
                    what answers promise, beside what was measured or published
    evaluation.py   protocols and baselines beside those that models are shipped by
"""

from __future__ import annotations

import argparse


def parser_of(study: str, description: str | None) -> argparse.ArgumentParser:
    """What reads the words behind ``python -m studies STUDY``; its help is the module's text."""
    return argparse.ArgumentParser(
        prog=f"python -m studies {study}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

"""The thesis, reproduced: ``python -m studies thesis`` (docs/study.md).

G. Alavani's thesis (BITS Pilani, 2023), chapters 3 to 6 and Appendix A, on the authors' published
rows. Every score is out of fold, by rows left out at random (what the thesis reports) AND by
kernels left out, beside the median power of the training rows.

    data.py        rows, the printed figures (``printed.toml``), how models are judged
    published.py   the printed pairs of times, and parallel dwarfs (``dwarfs.toml``)
    times.py       the two time models: Tables 4.2, 4.3, 4.8, 4.9
    regressors.py  Tables 5.7 to 5.9
    features.py    section 5.5, Table 5.10; rows.py: Tables 3.3 to 4.5, 5.11, 5.12, 6.2
    *_sections.py  the tables beside the printed ones; command.py prints them
"""

"""The thesis' power study, reproduced: ``python -m studies thesis`` (docs/study.md).

G. Alavani's thesis (BITS Pilani, 2023), chapter 5 and Appendix A, on the authors' published rows.
Every score is out of fold, by rows left out at random (what the thesis reports) AND by kernels
left out, beside the median power of the training rows; the thesis' printed figures stand in
``printed.toml``.

    study.py       the rows and models that several parts need (data.py: rows; judged.py: scores)
    initial.py     the initial study: section 5.2, Tables 5.1 to 5.3
    selection.py   feature engineering: section 5.5
    regressors.py  the eight regressors: Tables 5.7 and 5.8; multi-linear baseline: section 5.7
    ann.py         networks and their schedules: Table 5.6
    repeated.py    repeated runs: Table 5.9
    cost.py        importance rankings, memory and time: Table 5.10
    outliers.py    HDBSCAN/GLOSH and what removal does: section 5.8.2, Table 5.11
    dependence.py  partial dependence: Figures 5.15 and 5.17
    dwarfs.py      error by parallel dwarf: Table 5.12
    dynamic.py     the model from counters measured at run time: Appendix A, Table 1
"""

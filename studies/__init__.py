"""What only reports, reproduced papers and the evidence behind constants need.

Run from a checkout: ``python -m studies`` lists the studies, ``python -m studies NAME --help`` says
what one takes. Nothing below ``wattcast`` imports from here, and the wheel does not hold it.

    report.py       accuracy reports: pages of text, tables and figures (pages/: how they are made)
    accuracy.py     docs/accuracy.md from the cards of the shipped models
    data/           tables that only studies read: many clocks, activities, measured launches
    scaling/        time and power over both clocks, from counters at one pair: the shipped models
    time/           time models beside measured times; intervals of the default and queueing models
    clocks/         scaling over clocks: fits, ablations, Abe et al.'s and Wang and Chu's models
    power/          power models on published rows, the physical model on measured activity
    thesis/         the thesis' power study (Alavani 2023, chapter 5)
    onboarding/     a simulated board of known numbers, measured and onboarded
    fit_all.py      every shipped model anew, by one command
    calibration.py  every GPU in turn is new, with a few measured launches
    boards_left_out.py  what retraining is worth on boards taken for unmeasured ones
"""

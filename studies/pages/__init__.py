"""Accuracy reports: pages of text, tables and figures, written as Markdown and as HTML.

    page.py        what a page holds, and how it is written (page.css: how it looks)
    figures.py     the figures, as SVG that equal data make equal byte for byte
    targets.py     targets beside what was reached
    uninformed.py  predictions that know nothing of the program: median, mean scaling curve
    dwarfs.py      parallel dwarfs of programs (dwarfs.toml)

matplotlib and markdown-it-py come with the extra ``train``; ``studies.report.require`` says
so where they are missing.
"""

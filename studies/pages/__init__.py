"""What pages are made with: Markdown, figures, docs/reference, the tab Accuracy.

Figures need matplotlib (the extra ``train``).
"""

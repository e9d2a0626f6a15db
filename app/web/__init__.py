"""The page: templates, modules of script, style sheets; ``app.api.pages`` reads them."""

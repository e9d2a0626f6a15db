"""The page: templates, modules of script, style sheets; ``app.services.pages`` reads them."""

"""HTTP: thin routers over ``app.services``."""

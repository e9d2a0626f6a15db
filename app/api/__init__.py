"""HTTP: thin routers over ``wattcast.app.services``."""

"""Versions of models: ``registry`` lists, promotes and rolls back; ``champions`` serves what is
promoted, ``standalone`` the same to faces without a service; ``artifacts`` is where models lie."""

"""Power models on published rows and on measured activity."""

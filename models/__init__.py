"""Facts in, numbers out: seconds, watts and joules, each with an honest interval."""

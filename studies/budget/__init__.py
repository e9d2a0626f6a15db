"""Whether counts under the default budget are those of a run to completion."""

"""From uploaded measurements to a judged candidate."""

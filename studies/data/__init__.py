"""Published tables that only studies read: at many clocks, activities, launches with their work."""

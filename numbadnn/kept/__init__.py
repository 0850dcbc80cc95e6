"""What files remember: choices, plans, errata, ranks learned from measurements."""

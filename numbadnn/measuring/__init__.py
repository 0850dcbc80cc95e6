"""What measures and compares: device and host clocks, tuning, laws and bounds, worker processes."""

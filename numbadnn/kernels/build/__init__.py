"""From a kernel's Python function to a launch: compile, lower, assemble, keep, launch; and the simulator in their place."""

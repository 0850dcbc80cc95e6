"""The driver, contexts, streams, devices and memory."""

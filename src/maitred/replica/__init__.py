"""One loaded copy of a model: in a child process, in a thread, or on the loop."""

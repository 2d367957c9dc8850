"""Every decision about who runs when, without I/O: queue, admission, batching, fairness, recovery, dispatcher."""

"""MODEL: what is served: its signature, its artifact, and how it is loaded and called."""

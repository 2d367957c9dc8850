"""POOL: replicas of one version behind one shared queue."""

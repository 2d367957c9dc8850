"""The `maitred` command: one file per subcommand, each importing its heavy parts only when it runs."""

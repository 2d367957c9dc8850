"""What tests of maitred, and of what extends it, may use: contract suites and fakes."""

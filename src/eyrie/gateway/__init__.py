"""The wire protocol of the target's answers: keys, requests, replies, errors, connections. Knows no datasets."""

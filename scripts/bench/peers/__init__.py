"""The peers of scripts/bench/bench_peers.py, and its tools."""

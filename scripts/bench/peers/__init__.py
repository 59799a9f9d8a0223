"""What scripts/bench/bench_peers.py measures Nestor beside, and what it needs for that."""

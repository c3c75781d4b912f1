"""What a reader can say: frozen records, each with the line it was read from. No thresholds, no judgement."""

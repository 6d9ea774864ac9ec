"""Policies, one file a kind: job + site -> Decision. Predicates are ClassAd expressions."""

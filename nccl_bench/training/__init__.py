"""What it costs: models, layouts, the collectives of one training step, prices, and the search for a better layout."""

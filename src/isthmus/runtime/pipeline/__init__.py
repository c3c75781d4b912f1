"""A model's layers split over regions: cutting it, schedules of micro-batches, activations over the WAN, the model itself."""

"""Every-step strategies: gradients cross between regions in every step."""

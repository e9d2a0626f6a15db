"""Power from the published schemas on kernels never seen: pooling, anchoring, what must hold."""

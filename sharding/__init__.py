"""Where a chain lives: mesh, layout, placement, the one shard_map, gather, drawing."""

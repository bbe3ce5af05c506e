"""What a run is: model, blocks, progress, diagnostics, ArviZ."""

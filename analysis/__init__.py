"""Pure analysis: packets, sound and events in; boundaries, statistics, plots and reports out. No device, no network."""

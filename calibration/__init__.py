"""The desk rig: what a device adds to a measurement, as a profile. May import `analysis`, never `probe`."""

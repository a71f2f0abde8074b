"""The live side: targets, media, engine, recorder, demo agent and command line."""

"""Run folders, their configuration and their stages."""

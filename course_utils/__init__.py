"""Helpers of the course; importing the package does no work: no device query, no plotting library, no network."""

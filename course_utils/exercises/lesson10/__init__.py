"""Larger than one device: is this schedule, this shard, this split right? The exercises of lesson 10."""

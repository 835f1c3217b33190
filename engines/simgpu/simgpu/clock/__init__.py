"""What time is it on the simulated machine, what happened when, and how far is that from measured times?"""

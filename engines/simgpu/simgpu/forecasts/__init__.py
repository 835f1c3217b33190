"""How much memory and time would a program take on a GPU that is not here?"""
